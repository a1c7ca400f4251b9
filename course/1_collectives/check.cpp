// Grades lesson 1: results, rounds, bytes, and the model of time.
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "course/1_collectives/collectives.h"
#include "course/lib/grade.h"
#include "course/lib/observer.h"

namespace course {
namespace {

// Sizes of buffers, for 1, 2, 3 and 5 ranks: 7001 is divisible by neither 2, 3 nor 5, and 1920 is
// divisible by all three. A buffer has one piece for each rank. With 3 or 5 ranks, a buffer of 2
// elements has some empty pieces.
constexpr int64_t sizes[] = {1000 * 7 + 1, 30 * 64, 2};

// Small integers, so that sums are exact in any order. Values of different ranks differ, and the
// first elements of neighbouring pieces differ.
float contribution(int64_t rank, int64_t i) {
  return static_cast<float>((rank + 1) * 1000 + i * 7 % 501);
}

float sum_at(int64_t i, int64_t ranks) {
  float sum = 0;
  for (int64_t r = 0; r < ranks; ++r) sum += contribution(r, i);
  return sum;
}

using Collective = std::function<void(dist::Communicator&, const Tensor&)>;
/// Returns the value that element i must have on this rank. NaN means any value.
using Expected = std::function<float(int64_t i)>;

struct Called {
  std::string wrong;
  int64_t rounds = 0;
  int64_t bytes = 0;
};

std::string wrong_element(const Tensor& buffer, int64_t ranks, const Expected& expected) {
  for (int64_t i = 0; i < buffer.elements(); ++i) {
    const float value = buffer.data<float>()[i];
    const float wanted = expected(i);
    if (std::isnan(wanted) || value == wanted) continue;
    int64_t r = 0;
    while (i >= (r + 1) * buffer.elements() / ranks) ++r;
    return fmt::format("of {} elements, element {} (in piece {}) is {}, expected {}",
                       buffer.elements(), i, r, value, wanted);
  }
  return "";
}

// Calls the student's collective on a new buffer, whose element i is input(i) before the call.
Called call(Grade& grade, int64_t size, const Collective& collective, const Expected& expected,
            const Expected& input) {
  Events events;
  Observer observer(grade.communicator(), events);
  const Tensor buffer = Tensor::empty({size});
  for (int64_t i = 0; i < size; ++i) buffer.data<float>()[i] = input(i);
  grade.communicator().traffic().reset();
  collective(observer, buffer);
  Called called;
  const std::vector<std::string> unwaited = observer.finish();
  called.wrong = wrong_element(buffer, observer.size(), expected);
  for (const Event& event : events.list()) {
    if (event.kind == "send_receive") {
      ++called.rounds;
    } else if (event.kind != "wait") {
      called.wrong = fmt::format(
          "your function calls {}: build it from send_receive, send and receive", event.kind);
    }
  }
  if (!observer.races().empty()) {
    called.wrong =
        "a buffer was written while it was still being sent: wait for the transfer first";
  } else if (!unwaited.empty()) {
    called.wrong = "nothing waits for a transfer";
  }
  called.bytes = grade.communicator().traffic().bytes_sent(dist::Traffic::gradients);
  return called;
}

// Returns a message if the reduce-scatter has completed another piece instead of this rank's own.
std::string shifted_message(Grade& grade) {
  grade.at("ring_reduce_scatter");
  const int64_t ranks = grade.world().size;
  const int64_t rank = grade.world().rank;
  const int64_t size = sizes[1];
  std::string text;
  bool right = false;
  for (int64_t shift = 0; shift < ranks; ++shift) {
    const auto in_piece = [=](int64_t i) {
      const int64_t r = (rank + shift) % ranks;
      return i >= r * size / ranks && i < (r + 1) * size / ranks;
    };
    const Called called = call(
        grade, size, ring_reduce_scatter,
        [&](int64_t i) { return in_piece(i) ? sum_at(i, ranks) : NAN; },
        [rank](int64_t i) { return contribution(rank, i); });
    // A rank whose result is right must go on, because ranks whose result is wrong call again.
    right = right || (shift == 0 && called.wrong.empty());
    if (right || !called.wrong.empty()) continue;
    text = fmt::format(
        "rank r has the sum of piece r + {}, expected piece r: every rank begins "
        "with the wrong piece",
        shift);
  }
  return text;
}

// Returns the bytes of all pieces of a buffer except piece `left_out`.
int64_t other_pieces(int64_t size, int64_t ranks, int64_t left_out) {
  const int64_t own = (left_out + 1) * size / ranks - left_out * size / ranks;
  return 4 * (size - own);
}

struct Cost {
  int64_t rounds = 0;
  std::function<int64_t(int64_t size)> bytes;
};

void require(Grade& grade, const std::string& name, const Collective& collective,
             const std::function<Expected(int64_t size)>& expected, const Expected& input,
             const Cost& cost) {
  std::string wrong;
  std::string costs;
  grade.at(name);
  for (const int64_t size : sizes) {
    const Called called = call(grade, size, collective, expected(size), input);
    if (wrong.empty()) wrong = called.wrong;
    const int64_t bytes = cost.bytes(size);
    if (!costs.empty()) continue;
    if (called.rounds != cost.rounds) {
      costs = fmt::format("{} transfers, expected {} on this rank", called.rounds, cost.rounds);
    } else if (called.bytes != bytes) {
      costs = fmt::format("{} bytes were sent of a buffer of {}, expected {} on this rank",
                          grouped(called.bytes), grouped(4 * size), grouped(bytes));
    }
    if (costs.empty()) continue;
    // In a tree, whole buffers are no mistake.
    const bool ring = name.starts_with("ring");
    if (ring && called.bytes == called.rounds * 4 * size && called.bytes > bytes) {
      costs += "\n      Whole buffers are sent, but a round of the ring sends only one piece";
    } else if (called.bytes == 0 && bytes > 0) {
      costs += "\n      Is the purpose `transfer` given to each call?";
    }
  }
  grade.require(name + ": result", wrong);
  grade.require(name + ": transfers and bytes", costs);
}

void check_ring(Grade& grade) {
  const int64_t ranks = grade.world().size;
  const int64_t rank = grade.world().rank;
  const auto own = [rank](int64_t i) { return contribution(rank, i); };
  const auto in_own_piece = [=](int64_t size, int64_t i) {
    return i >= rank * size / ranks && i < (rank + 1) * size / ranks;
  };
  const auto sums = [ranks](int64_t) -> Expected {
    return [ranks](int64_t i) { return sum_at(i, ranks); };
  };
  grade.require("ring_reduce_scatter: rank r ends with piece r", shifted_message(grade));
  require(grade, "ring_reduce_scatter", ring_reduce_scatter,
          [=](int64_t size) -> Expected {
            return [=](int64_t i) { return in_own_piece(size, i) ? sum_at(i, ranks) : NAN; };
          },
          own, {ranks - 1, [=](int64_t size) { return other_pieces(size, ranks, rank); }});
  require(grade, "ring_all_gather", ring_all_gather,
          [=](int64_t size) -> Expected {
            return [=](int64_t i) {
              int64_t owner = 0;
              while (i >= (owner + 1) * size / ranks) ++owner;
              return contribution(owner, i);
            };
          },
          own,
          {ranks - 1, [=](int64_t size) { return other_pieces(size, ranks, (rank + 1) % ranks); }});
  require(grade, "ring_all_reduce", ring_all_reduce, sums, own,
          {2 * (ranks - 1), [=](int64_t size) {
             return other_pieces(size, ranks, rank) + other_pieces(size, ranks, (rank + 1) % ranks);
           }});
}

// Returns the number of transfers that a rank has with higher ranks in a tree reduce. A tree
// broadcast has the same number. In each of the two collectives, every rank except 0 also has one
// transfer with a lower rank.
int64_t above(int64_t rank, int64_t ranks) {
  int64_t count = 0;
  for (int64_t d = 1; d < ranks && rank % (2 * d) == 0; d *= 2) count += rank + d < ranks ? 1 : 0;
  return count;
}

void check_tree(Grade& grade) {
  const int64_t ranks = grade.world().size;
  const int64_t rank = grade.world().rank;
  const int64_t below = rank > 0 ? 1 : 0;
  const int64_t all = above(rank, ranks) + below;
  const auto own = [rank](int64_t i) { return contribution(rank, i); };
  const auto sums = [ranks](int64_t) -> Expected {
    return [ranks](int64_t i) { return sum_at(i, ranks); };
  };
  require(grade, "tree_reduce", tree_reduce,
          [=](int64_t) -> Expected {
            return [=](int64_t i) { return rank == 0 ? sum_at(i, ranks) : NAN; };
          },
          own, {all, [=](int64_t size) { return below * 4 * size; }});
  require(grade, "tree_broadcast", tree_broadcast,
          [](int64_t) -> Expected { return [](int64_t i) { return contribution(0, i); }; }, own,
          {all, [=](int64_t size) { return above(rank, ranks) * 4 * size; }});
  require(grade, "tree_all_reduce", tree_all_reduce, sums, own,
          {2 * all, [=](int64_t size) { return all * 4 * size; }});
}

std::string time_message(const char* name, double found, double expected, double bytes,
                         int64_t ranks) {
  if (std::abs(found - expected) <= 1e-9 * expected) return "";
  return fmt::format(
      "{} gives {:.6g} s for {:.0f} bytes on {} ranks, with a latency of 10 us and "
      "5 GB/s; expected {:.6g} s",
      name, found, bytes, ranks, expected);
}

void check_times(Grade& grade) {
  const Link link{.latency_s = 1e-5, .bytes_per_s = 5e9};
  std::string ring;
  std::string tree;
  for (const int64_t ranks : {1, 2, 3, 5, 8, 64}) {
    for (const double pieces : {1.0, 1e6}) {
      const double n = static_cast<double>(ranks);
      const double bytes = pieces * n;
      const double rounds = std::ceil(std::log2(n));
      grade.at("the times");
      if (ring.empty()) {
        ring = time_message("ring_all_reduce_s", ring_all_reduce_s(bytes, ranks, link),
                            (2 * n - 2) * (1e-5 + pieces / 5e9), bytes, ranks);
      }
      if (tree.empty()) {
        tree = time_message("tree_all_reduce_s", tree_all_reduce_s(bytes, ranks, link),
                            2 * rounds * (1e-5 + bytes / 5e9), bytes, ranks);
      }
    }
  }
  grade.require("the ring's time", ring);
  grade.require("the tree's time", tree);
}

void check(Grade& grade) {
  // If ranks wait for each other forever, the check fails after 4 seconds.
  grade.communicator().set_timeout(4);
  check_ring(grade);
  check_tree(grade);
  check_times(grade);
  if (grade.world().size != 3) return;
  const auto bytes_of = [&](const Collective& collective) {
    const auto any = [](int64_t) { return NAN; };
    return call(grade, 1536, collective, any, [](int64_t) { return 1.0f; }).bytes;
  };
  grade.predicted("bytes that rank 0 sends in a ring all-reduce", bytes_of(ring_all_reduce));
  grade.predicted("bytes that rank 0 sends in a tree all-reduce", bytes_of(tree_all_reduce));
  const Link link{.latency_s = 1e-5, .bytes_per_s = 1e9};
  grade.predicted("microseconds of a ring all-reduce of 3 MB",
                  std::llround(ring_all_reduce_s(3e6, 3, link) * 1e6));
  grade.predicted("microseconds of a tree all-reduce of 3 MB",
                  std::llround(tree_all_reduce_s(3e6, 3, link) * 1e6));
}

}  // namespace
}  // namespace course

int main(int argc, char** argv) {
  return course::grade(argc, argv, "lesson 1: collectives", course::check);
}
