#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "tests/dist/mpi_helpers.h"

using namespace tessera;
using namespace tessera::dist;

namespace {

struct Arrival {
  int source;
  int64_t begin;
  int64_t end;
};

// Checks that the arrivals cover [0, elements) once for each source, and that every element arrives
// in ascending order of source.
void check_order(const std::vector<Arrival>& arrivals, int64_t elements, int contributors) {
  int64_t done = 0;  // elements up to here have arrived from all sources
  int next = 0;
  int64_t end = 0;
  for (const Arrival& arrival : arrivals) {
    REQUIRE(arrival.source == next);
    REQUIRE(arrival.begin == done);
    REQUIRE(arrival.begin % 256 == 0);
    REQUIRE(arrival.end > arrival.begin);
    if (next > 0) REQUIRE(arrival.end == end);
    end = arrival.end;
    if (++next == contributors) {
      next = 0;
      done = end;
    }
  }
  REQUIRE(next == 0);
  REQUIRE(done == elements);
}

int64_t sent_by_reduction(int contributors, int64_t piece_bytes) {
  return job().rank() < contributors ? (job().size() - 1) * piece_bytes : 0;
}

template <class T>
void check_exchange_of(int64_t piece, int contributors) {
  const int ranks = job().size();
  const int rank = job().rank();
  const Tensor input = filled<T>(rank, ranks * piece);
  std::vector<Arrival> arrivals;
  int64_t wrong = 0;
  const auto receive = [&](int source, int64_t begin, const Tensor& chunk) {
    arrivals.push_back({source, begin, begin + chunk.elements()});
    wrong += differences<T>(chunk, [&](int64_t i) {
      return value_at(source, rank * piece + begin + i);
    });
    // This rank's own piece arrives as a view of `input`, not as a copy.
    if (source == rank) wrong += chunk.raw() != input.data<T>() + rank * piece + begin;
  };
  const Counted counted(job());
  job().exchange(input, contributors, receive, {Traffic::gradients, 3}).wait();
  CHECK(wrong == 0);
  check_order(arrivals, piece, contributors);
  CHECK(counted.only(Collective::exchange, Traffic::gradients,
                     sent_by_reduction(contributors, input.bytes() / ranks)));
}

template <class T>
void check_reduce_scatter_of(int64_t piece, int contributors) {
  const int ranks = job().size();
  const int rank = job().rank();
  const Tensor input = filled<T>(rank, ranks * piece);
  const Tensor shard = Tensor::full({piece}, -1.0f);
  const Counted counted(job());
  job().reduce_scatter(shard, input, contributors, {Traffic::gradients, 0}).wait();
  CHECK(differences(shard, [&](int64_t i) { return sum_at(contributors, rank * piece + i); }) == 0);
  CHECK(differences<T>(input, [&](int64_t i) { return value_at(rank, i); }) == 0);
  CHECK(counted.only(Collective::reduce_scatter, Traffic::gradients,
                     sent_by_reduction(contributors, input.bytes() / ranks)));
}

// Calls check.operator()<T>(piece, contributors) for each dtype, with sizes around the dtype's
// chunk size.
template <class Check>
void for_sizes(Check&& check) {
  const auto of = [&]<class T>(bool few) {
    for (const int64_t piece : piece_sizes<T>(few)) {
      for (const int contributors : contributor_counts(job().size(), piece, few)) {
        INFO(dtype_name(dtype_of<T>) << ", piece " << piece << ", contributors " << contributors);
        check.template operator()<T>(piece, contributors);
      }
    }
  };
  of.template operator()<float>(many_ranks());
  of.template operator()<BFloat16>(true);
  of.template operator()<Float16>(true);
}

}  // namespace

TEST_CASE("exchange hands over every contribution in ascending order of source") {
  for_sizes([]<class T>(int64_t piece, int contributors) {
    check_exchange_of<T>(piece, contributors);
  });
}

TEST_CASE("exchange moves elements of any size") {
  const int ranks = job().size();
  const int64_t piece = 100'003;
  const Tensor input = filled<uint8_t>(job().rank(), ranks * piece);
  int64_t wrong = 0;
  int64_t elements = 0;
  const auto receive = [&](int source, int64_t begin, const Tensor& chunk) {
    elements += chunk.elements();
    wrong += differences<uint8_t>(chunk, [&](int64_t i) {
      return value_at(source, job().rank() * piece + begin + i);
    });
  };
  job().exchange(input, ranks, receive, {}).wait();
  CHECK(wrong == 0);
  CHECK(elements == ranks * piece);
}

TEST_CASE("reduce_scatter leaves the sum of the contributions") {
  for_sizes([]<class T>(int64_t piece, int contributors) {
    check_reduce_scatter_of<T>(piece, contributors);
  });
}

// 256 + 1 needs nine significant bits, so a sum in bf16 that begins with 256 would stay 256.
TEST_CASE("reduce_scatter adds 16-bit contributions in f32") {
  const int ranks = job().size();
  const Tensor input = Tensor::empty({ranks * 10}, DType::bf16);
  std::ranges::fill(input.values<BFloat16>(), BFloat16(job().rank() == 0 ? 256.0f : 1.0f));
  const Tensor shard = Tensor::empty({10});
  job().reduce_scatter(shard, input, ranks, {}).wait();
  CHECK(differences(shard, [&](int64_t) { return 255 + ranks; }) == 0);
}

TEST_CASE("reduce_scatter into the rank's own piece") {
  const int ranks = job().size();
  const int rank = job().rank();
  const int64_t piece = chunk_elements() + 1000;
  const Tensor input = filled(rank, ranks * piece);
  const Tensor shard = input.flat(rank * piece, (rank + 1) * piece);
  job().reduce_scatter(shard, input, ranks, {}).wait();
  CHECK(differences(shard, [&](int64_t i) { return sum_at(ranks, rank * piece + i); }) == 0);
}

TEST_CASE("reduce_scatter gives the same bits each time") {
  const int ranks = job().size();
  const int64_t piece = chunk_elements() + 1000;
  const Tensor input = Tensor::empty({ranks * piece});
  std::mt19937 random(static_cast<uint32_t>(job().rank()));
  std::normal_distribution<float> normal;
  for (float& x : input.values<float>()) x = normal(random);
  const Tensor first = Tensor::empty({piece});
  const Tensor again = Tensor::empty({piece});
  job().reduce_scatter(first, input, ranks, {}).wait();
  for (int round = 0; round < 5; ++round) {
    job().reduce_scatter(again, input, ranks, {}).wait();
    REQUIRE(std::memcmp(first.values<float>().data(), again.values<float>().data(),
                        static_cast<size_t>(first.bytes())) == 0);
  }
}

TEST_CASE("all_reduce leaves the sum on every rank") {
  const int ranks = job().size();
  for (const int64_t elements : piece_sizes()) {
    INFO("elements " << elements);
    const Tensor floats = filled<float>(job().rank(), elements);
    const Tensor integers = filled<int64_t>(job().rank(), elements);
    const Counted counted(job());
    job().all_reduce(floats, {Traffic::norms, -1}).wait();
    CHECK(counted.only(Collective::all_reduce, Traffic::norms, (ranks - 1) * floats.bytes()));
    const Counted again(job());
    job().all_reduce(integers, {Traffic::losses, -1}).wait();
    CHECK(again.only(Collective::all_reduce, Traffic::losses, (ranks - 1) * integers.bytes()));
    CHECK(differences<float>(floats, [&](int64_t i) { return sum_at(ranks, i); }) == 0);
    CHECK(differences<int64_t>(integers, [&](int64_t i) { return sum_at(ranks, i); }) == 0);
  }
}

TEST_CASE("all_reduce adds in the order of ranks, on every rank alike") {
  const int ranks = job().size();
  const int64_t elements = 150'000;
  const auto values_of = [&](int rank) {
    std::mt19937 random(static_cast<uint32_t>(rank));
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(elements));
    for (float& x : values) x = normal(random);
    return values;
  };
  std::vector<float> expected = values_of(0);
  for (int r = 1; r < ranks; ++r) {
    const std::vector<float> values = values_of(r);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += values[i];
  }
  const Tensor buffer = Tensor::from<float>({elements}, values_of(job().rank()));
  job().all_reduce(buffer, {}).wait();
  CHECK(std::memcmp(buffer.values<float>().data(), expected.data(),
                    static_cast<size_t>(buffer.bytes())) == 0);
}

TEST_CASE("arguments that do not fit are refused before anything is sent") {
  const int ranks = job().size();
  const auto ignore = [](int, int64_t, const Tensor&) {};
  const Counted counted(job());
  CHECK_THROWS_AS(job().exchange(Tensor::zeros({ranks}), 0, ignore, {}), Error);
  CHECK_THROWS_AS(job().exchange(Tensor::zeros({ranks}), ranks + 1, ignore, {}), Error);
  CHECK_THROWS_AS(job().reduce_scatter(Tensor::zeros({2}), Tensor::zeros({ranks}), 1, {}), Error);
  for (const auto& [shard, input] : {std::pair{DType::f32, DType::i32},
                                     {DType::f32, DType::u8},
                                     {DType::bf16, DType::bf16}}) {
    const Tensor x = Tensor::zeros({ranks}, input);
    CHECK_THROWS_AS(job().reduce_scatter(Tensor::zeros({1}, shard), x, 1, {}), Error);
  }
  CHECK_THROWS_AS(job().all_reduce(Tensor::zeros({2}, DType::u8), {}), Error);
  CHECK_THROWS_AS(job().broadcast(Tensor::zeros({2}), ranks, {}), Error);
  CHECK_THROWS_AS(job().broadcast(Tensor::zeros({2}), -1, {}), Error);
  if (ranks > 1) {
    CHECK_THROWS_AS(job().exchange(Tensor::zeros({ranks + 1}), 1, ignore, {}), Error);
    CHECK_THROWS_AS(job().all_gather(Tensor::zeros({2 * ranks - 1}), {}), Error);
  }
  job().barrier();
  CHECK(counted.only(Collective::barrier, Traffic::other, 0));
}
