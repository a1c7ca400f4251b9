// Tests jobs over MPI in which ranks make different calls, or a rank does not make or finish its
// call. The errors must name ranks and calls.
#include <atomic>
#include <thread>

#include "tests/dist/mpi_helpers.h"

using namespace tessera;
using namespace tessera::dist;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

using Make = std::function<Work(Communicator&)>;

bool says_calls() { return job().size() > 1 && !over_nccl(); }

const auto ignore = [](int, int64_t, const Tensor&) {};

Tensor pieces(int64_t elements, DType dtype = DType::f32) {
  return Tensor::zeros({job().size() * elements}, dtype);
}

// Rank 0 makes the call `one`, the other ranks make `another`. The errors of all ranks must name
// both calls.
void disagree(const Make& one, const std::string& text, const Make& another,
              const std::string& other_text) {
  CAPTURE(text, other_text);
  const auto communicator = new_communicator();
  const auto barrier = [&] { communicator->barrier(); };
  CHECK_NOTHROW(barrier());  // this is call 1, so the next call is call 2
  const Work work = job().rank() == 0 ? one(*communicator) : another(*communicator);
  const std::string rank = job().rank() == 0 ? "rank " : fmt::format("rank {} ", job().rank());
  CHECK_THROWS_WITH(work.wait(), ContainsSubstring("ranks make different calls") &&
                                     ContainsSubstring("rank 0 " + text) &&
                                     ContainsSubstring(rank) && ContainsSubstring(other_text));
  CHECK_THROWS_WITH(barrier(), ContainsSubstring("ranks make different calls"));
  job().barrier();
}

}  // namespace

TEST_CASE("if ranks make different calls, the error names both") {
  if (!says_calls()) return;
  const int ranks = job().size();
  const Call gradients{Traffic::gradients, 2};
  const Call parameters{Traffic::parameters, 3};
  const Make gather = [&](Communicator& c) { return c.all_gather(pieces(256), parameters); };
  const Make exchange = [&](Communicator& c) {
    return c.exchange(pieces(256), ranks, ignore, gradients);
  };
  const std::string gathers =
      fmt::format("all_gather of parameters, bucket 3 (call 2, {} bytes of f32)", ranks * 1024);
  disagree(gather, gathers, exchange,
           fmt::format("exchange of gradients, bucket 2 (call 2, {} bytes of f32 from {} ranks)",
                       ranks * 1024, ranks));
  disagree(
      gather, gathers, [&](Communicator& c) { return c.all_gather(pieces(100'000), parameters); },
      fmt::format("(call 2, {} bytes of f32)", ranks * 400'000));
  disagree(
      gather, gathers,
      [&](Communicator& c) {
        return c.all_gather(pieces(256), {Traffic::parameters, 4});
      },
      "bucket 4");
  disagree(
      gather, gathers,
      [&](Communicator& c) {
        return c.all_gather(pieces(256), {Traffic::other, 3});
      },
      "all_gather of other, bucket 3");
  disagree(
      gather, gathers,
      [&](Communicator& c) { return c.all_gather(pieces(512, DType::bf16), parameters); },
      "bytes of bf16");
  disagree(
      exchange, "exchange of gradients, bucket 2",
      [&](Communicator& c) { return c.exchange(pieces(256), 1, ignore, gradients); },
      "from 1 rank)");
}

TEST_CASE("different empty calls, roots and barriers are errors, too") {
  if (!says_calls()) return;
  const Make empty_sum = [](Communicator& c) {
    return c.all_reduce(Tensor::zeros({0}, DType::i64), {});
  };
  const Make broadcast = [](Communicator& c) { return c.broadcast(Tensor::zeros({0}), 0, {}); };
  disagree(empty_sum, "all_reduce of other (call 2, 0 bytes of i64)", broadcast,
           "broadcast of other (call 2, 0 bytes of f32 from rank 0)");
  disagree(
      broadcast, "broadcast",
      [](Communicator& c) { return c.broadcast(Tensor::zeros({0}), 1, {}); }, "from rank 1)");
  disagree(
      [](Communicator& c) {
        CHECK_THROWS_AS(c.barrier(), Error);
        return c.run([] {});  // waiting for this call throws the barrier's error
      },
      "barrier (call 2)", empty_sum, "all_reduce of other");
}

TEST_CASE("after the timeout, the error names a rank that has not made the call") {
  if (!says_calls()) return;
  const auto communicator = new_communicator();
  communicator->set_timeout(0.2);
  const auto barrier = [&] { communicator->barrier(); };
  if (job().rank() != 0) {
    // If many ranks share the cores, other ranks than 0 may be late, too.
    CHECK_THROWS_WITH(barrier(), ContainsSubstring("barrier (call 1): nothing has moved for 0.2 s "
                                                   "(--comm-timeout): rank") &&
                                     (ContainsSubstring(": rank 0 has not made this call") ||
                                      ContainsSubstring(": ranks 0, ")));
  }
  job().barrier();
}

TEST_CASE("after the timeout, the error names a rank that has stopped within the call") {
  if (!says_calls()) return;
  std::atomic<bool> go_on{false};
  const auto communicator = new_communicator();
  const auto receive = [&](int, int64_t, const Tensor&) {
    while (job().rank() == 0 && !go_on) std::this_thread::sleep_for(1ms);
  };
  // On rank 0, `receive` blocks in its first chunk until `go_on` is set. Meanwhile staging has room
  // for only two of the eight chunks that rank 1 sends, so rank 1 cannot finish its call.
  const Tensor input = pieces(8 * chunk_elements());
  const Work work = communicator->exchange(input, job().size(), receive, {Traffic::gradients, 5});
  job().barrier();  // all ranks have made the call
  if (job().rank() == 1) {
    communicator->set_timeout(0.5);
    CHECK_THROWS_WITH(work.wait(),
                      ContainsSubstring("exchange of gradients, bucket 5 (call 1") &&
                          ContainsSubstring("made this call, but not finished it") &&
                          (ContainsSubstring(": rank 0 ") || ContainsSubstring(": ranks 0, ")));
  }
  job().barrier();
  go_on = true;
}
