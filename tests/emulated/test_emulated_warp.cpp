// Tests operations of a warp: the lane that a shuffle reads, masks, votes, and warps that are not
// full.
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/emulated/launch.h"
#include "tests/support/catch.h"

using namespace emulated_tests;

namespace {

// y is (threads, 4): the results of the four kinds of shuffle, all with the same argument.
template <class T>
__global__ void shuffle_all(T* y, const T* x, int argument, int width) {
  const unsigned i = threadIdx.x;
  y[4 * i] = __shfl_sync(~0u, x[i], argument, width);
  y[4 * i + 1] = __shfl_up_sync(~0u, x[i], unsigned(argument), width);
  y[4 * i + 2] = __shfl_down_sync(~0u, x[i], unsigned(argument), width);
  y[4 * i + 3] = __shfl_xor_sync(~0u, x[i], argument, width);
}

// Returns the lane that a shuffle reads, as the CUDA programming guide says. Kinds 0 to 3 are the
// shuffles in the order of shuffle_all. Segments have `width` lanes. __shfl_sync takes its argument
// modulo the width. With up and down, a lane whose source is outside its segment reads its own
// value. With xor, a lane reads its own value only if the source is in a later segment.
int expected_lane(int kind, int lane, int argument, int width) {
  const int segment = lane / width * width;
  const int inside = lane % width;
  switch (kind) {
    case 0: return segment + argument % width;
    case 1: return inside - argument < 0 ? lane : lane - argument;
    case 2: return inside + argument >= width ? lane : lane + argument;
    default: return (lane ^ argument) / width > lane / width ? lane : lane ^ argument;
  }
}

template <class T>
void check_shuffles() {
  std::vector<T> x(64);
  for (int i = 0; i < 64; ++i) x[size_t(i)] = static_cast<T>(i + 1) * static_cast<T>(-77777);
  std::vector<T> y(4 * 64);
  for (int width = 1; width <= 32; width *= 2) {
    for (int argument = 0; argument < 32; ++argument) {
      REQUIRE(launch({1, 64}, shuffle_all<T>, y.data(), x.data(), argument, width) == cudaSuccess);
      int mistakes = 0;
      for (int i = 0; i < 4 * 64; ++i) {
        const int thread = i / 4;
        const int lane = expected_lane(i % 4, thread % 32, argument, width);
        mistakes += y[size_t(i)] != x[size_t(thread / 32 * 32 + lane)];
      }
      CHECK(mistakes == 0);
    }
  }
}

// The halves of a warp diverge, each with its own mask.
__global__ void in_halves(int* y) {
  const int lane = static_cast<int>(threadIdx.x);
  int value = lane;
  if (lane < 16) {
    for (int offset = 8; offset > 0; offset /= 2) {
      value += __shfl_xor_sync(0x0000FFFFu, value, offset);
    }
  } else {
    for (int round = 0; round < 3; ++round) value = __shfl_sync(0xFFFF0000u, value + 1, 20);
    __syncwarp(0xFFFF0000u);
  }
  y[lane] = value;
}

// The last warp has only 8 lanes; its mask names 24 lanes that do not exist.
__global__ void not_full(int* y) {
  const int value = __shfl_down_sync(~0u, static_cast<int>(threadIdx.x), 4);
  __syncwarp();
  y[threadIdx.x] = value;
}

__global__ void votes(unsigned* y, int limit) {
  const int i = static_cast<int>(threadIdx.x);
  y[3 * i] = __ballot_sync(~0u, i % 3 == 0);
  y[3 * i + 1] = static_cast<unsigned>(__any_sync(~0u, i == limit));
  y[3 * i + 2] = static_cast<unsigned>(__all_sync(~0u, i < limit));
}

struct Row {
  int value;
  int sum;
};

void prefix_sums(Row* const* lanes) {
  int sum = 0;
  for (int i = 0; i < 32; ++i) lanes[i]->sum = sum += lanes[i]->value;
}

__global__ void whole_warp(int* y) {
  Row mine{static_cast<int>(threadIdx.x), 0};
  emulated::warp_operation<prefix_sums>("prefix sums", mine);
  y[threadIdx.x] = mine.sum;
}

__global__ void wrong_width() { __shfl_sync(~0u, 1, 0, 12); }
__global__ void wrong_distance() { __shfl_down_sync(~0u, 1, 32); }

}  // namespace

TEST_CASE("emulated: shuffles of all kinds, widths and types") {
  check_shuffles<int>();
  check_shuffles<unsigned>();
  check_shuffles<float>();
  check_shuffles<double>();
  check_shuffles<long long>();
}

TEST_CASE("emulated: parts of a warp may diverge, each with its own mask") {
  CHECK(seeds_where([] {
          std::vector<int> y(32);
          REQUIRE(launch({1, 32}, in_halves, y.data()) == cudaSuccess);
          std::vector<int> expected(16, 120);
          expected.resize(32, 23);
          return y != expected;
        }) == 0);
}

TEST_CASE("emulated: a shuffle from a missing lane gives an undefined value, and ends") {
  std::vector<int> y(40);
  REQUIRE(launch({1, 40}, not_full, y.data()) == cudaSuccess);
  for (int i = 0; i < 40; ++i) {
    const int expected = i < 28 ? i + 4 : i < 32 ? i : i < 36 ? i + 4 : -1;
    CHECK(y[size_t(i)] == expected);
  }
}

TEST_CASE("emulated: votes") {
  std::vector<unsigned> y(3 * 64);
  REQUIRE(launch({1, 64}, votes, y.data(), 40) == cudaSuccess);
  unsigned ballots[2] = {};
  for (int i = 0; i < 64; ++i) ballots[i / 32] |= unsigned(i % 3 == 0) << i % 32;
  for (int i = 0; i < 64; ++i) {
    CHECK(y[size_t(3 * i)] == ballots[i / 32]);
    CHECK(y[size_t(3 * i + 1)] == unsigned(i >= 32));
    CHECK(y[size_t(3 * i + 2)] == unsigned(i < 32));
  }
}

TEST_CASE("emulated: an operation over the values of all 32 lanes") {
  CHECK(seeds_where([] {
          std::vector<int> y(64);
          REQUIRE(launch({1, 64}, whole_warp, y.data()) == cudaSuccess);
          int mistakes = 0;
          for (int i = 0; i < 64; ++i) {
            const int first = i / 32 * 32;
            mistakes += y[size_t(i)] != (i - first + 1) * (i + first) / 2;
          }
          return mistakes != 0;
        }) == 0);
  std::vector<int> y(40);
  CHECK(launch({1, 40}, whole_warp, y.data()) == cudaErrorLaunchFailure);
}

TEST_CASE("emulated: shuffles refuse invalid arguments") {
  CHECK(launch({1, 32}, wrong_width) == cudaErrorLaunchFailure);
  CHECK(launch({1, 32}, wrong_distance) == cudaErrorLaunchFailure);
  (void)cudaGetLastError();
}
