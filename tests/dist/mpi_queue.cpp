// Tests several calls in flight at once, the effect of a failed call, and the records of calls.
#include <chrono>
#include <ctime>
#include <random>
#include <thread>

#include "core/trace.h"
#include "dist/fold.h"
#include "tests/dist/mpi_helpers.h"
#include "tests/support/delayed_communicator.h"

using namespace tessera;
using namespace tessera::dist;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

struct Flight {
  Work work;
  std::function<int64_t()> wrong;  // the number of wrong elements, once the work is done
};

// Makes the call that `kind` selects. All ranks must pass equal arguments, so that they make equal
// calls.
Flight launch(Communicator& communicator, uint32_t kind, int64_t piece, int contributors) {
  const int ranks = communicator.size();
  const int rank = communicator.rank();
  if (kind == 0) {
    const Tensor input = filled(rank, ranks * piece);
    const Tensor sum = Tensor::empty({piece});
    const auto receive = [sum](int source, int64_t begin, const Tensor& chunk) {
      kernels::fold(current_context(sum.device()), sum.flat(begin, begin + chunk.elements()), chunk,
                    source == 0);
    };
    return {communicator.exchange(input, contributors, receive, {}), [=] {
              return differences(sum,
                                 [&](int64_t i) { return sum_at(contributors, rank * piece + i); });
            }};
  }
  if (kind == 1) {
    const Tensor shard = Tensor::empty({piece});
    const Tensor input = filled(rank, ranks * piece);
    return {communicator.reduce_scatter(shard, input, contributors, {}), [=] {
              return differences(shard,
                                 [&](int64_t i) { return sum_at(contributors, rank * piece + i); });
            }};
  }
  if (kind == 2) {
    const Tensor buffer = filled(rank, ranks * piece);
    return {communicator.all_gather(buffer, {}),
            [=] { return differences(buffer, [&](int64_t i) { return value_at(i / piece, i); }); }};
  }
  if (kind == 3) {
    const Tensor buffer = filled<int64_t>(rank, piece);
    return {communicator.all_reduce(buffer, {}), [=] {
              return differences<int64_t>(buffer, [&](int64_t i) { return sum_at(ranks, i); });
            }};
  }
  const int root = contributors - 1;
  const Tensor buffer = filled(rank, piece);
  return {communicator.broadcast(buffer, root, {}),
          [=] { return differences(buffer, [&](int64_t i) { return value_at(root, i); }); }};
}

void run_many(Communicator& communicator, int calls, int64_t largest_piece) {
  std::mt19937 random(42);
  std::vector<Flight> flights;
  for (int i = 0; i < calls; ++i) {
    const uint32_t kind = random() % 5;
    const int64_t piece = random() % static_cast<uint32_t>(largest_piece);
    const int contributors =
        static_cast<int>(random() % static_cast<uint32_t>(communicator.size()));
    flights.push_back(launch(communicator, kind, piece, contributors + 1));
  }
  for (size_t i = flights.size(); i-- > 0;) {
    flights[i].work.wait();
    CHECK(flights[i].work.done());
    CHECK(flights[i].wrong() == 0);
  }
}

int64_t largest_piece() { return many_ranks() ? chunk_elements() / 2 : 200'000; }

}  // namespace

TEST_CASE("many calls are under way at once and are waited for in any order") {
  run_many(job(), many_ranks() ? 20 : 60, largest_piece());
  run_many(job(), many_ranks() ? 60 : 200, 50);
}

TEST_CASE("ranks that arrive at different times") {
  for (int round = 0; round < 2 * job().size(); ++round) {
    if (round % job().size() == job().rank()) std::this_thread::sleep_for(5ms);
    run_many(job(), 3, 10'000);
  }
}

TEST_CASE("run() runs after the calls made before it, and before those made after it") {
  const Tensor buffer = filled<int64_t>(job().rank(), 1000);
  job().all_reduce(buffer, {});
  job().run([buffer] {
    for (int64_t& x : buffer.values<int64_t>()) x *= 2;
  });
  job().all_reduce(buffer, {}).wait();
  const int64_t ranks = job().size();
  CHECK(differences<int64_t>(buffer, [&](int64_t i) { return 2 * ranks * sum_at(ranks, i); }) == 0);
}

TEST_CASE("a barrier waits for the last rank") {
  job().barrier();
  const bool last = job().rank() == job().size() - 1;
  if (last) std::this_thread::sleep_for(20ms);
  const int64_t entered = trace::now_ns();
  job().barrier();
  const int64_t left = trace::now_ns();
  // Times of all ranks can be compared, because the ranks of a host share a clock.
  const Tensor last_entered = Tensor::from<int64_t>({1}, {last ? entered : 0});
  job().all_reduce(last_entered, {}).wait();
  CHECK(left >= last_entered.values<int64_t>()[0]);
}

// A thread that polls without a pause would use all 400 ms. With the pauses of Backoff, polling
// uses 15 to 110 ms, because a sleep costs more CPU time on some machines than on others.
TEST_CASE("a wait for another rank leaves the core to other threads") {
  job().barrier();
  if (job().rank() == 0) std::this_thread::sleep_for(400ms);
  const std::clock_t begin = std::clock();  // CPU time of all threads of this process
  job().all_gather(Tensor::zeros({job().size() * 1000}), {}).wait();
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 0.3);
}

TEST_CASE("a failure in a collective comes out of wait, and later calls fail as well") {
  const auto communicator = new_communicator();
  const Tensor input = filled(communicator->rank(), communicator->size());
  const auto throws = [](int, int64_t, const Tensor&) { throw Error("the receiver failed"); };
  const Work failing = communicator->exchange(input, communicator->size(), throws, {});
  const Work after = communicator->all_gather(input, {});
  for (const Work& work : {failing, after, failing}) {
    CHECK_THROWS_WITH(work.wait(), "the receiver failed");
    CHECK(work.done());
  }
  CHECK(communicator->traffic().calls(Collective::all_gather) == 0);
  job().barrier();
}

TEST_CASE("destroying a communicator ends the waits for its calls with an error") {
  if (job().size() == 1) return;
  auto communicator = new_communicator();
  Work work;
  if (job().rank() == 0) work = communicator->all_gather(Tensor::zeros({job().size()}), {});
  const Work queued = job().rank() == 0 ? communicator->all_gather(Tensor::zeros({0}), {}) : Work();
  communicator.reset();
  if (job().rank() == 0) {
    CHECK_THROWS_AS(work.wait(), Error);
    CHECK_THROWS_AS(queued.wait(), Error);
  }
  job().barrier();
}

TEST_CASE("waiting inside run() or a Receive is an error, unless the call is already done") {
  if (over_nccl()) return;  // over NCCL a wait does not block, it only orders streams
  const auto waits_inside = [](const std::function<void(Communicator&)>& wait) {
    const auto communicator = new_communicator();
    Communicator* const inside = communicator.get();
    CHECK_THROWS_WITH(communicator->run([&wait, inside] { wait(*inside); }).wait(),
                      ContainsSubstring("inside run() or a Receive"));
    const auto receive = [&wait, inside](int, int64_t, const Tensor&) { wait(*inside); };
    const Tensor x = filled(inside->rank(), inside->size());
    CHECK_THROWS_WITH(communicator->exchange(x, inside->size(), receive, {}).wait(),
                      ContainsSubstring("inside run() or a Receive"));
  };
  waits_inside([](Communicator& inside) { inside.barrier(); });
  waits_inside([](Communicator& inside) { inside.run([] {}).wait(); });
  // A call made before run() is done when run()'s function begins, so the function may wait for it.
  const Work before = job().all_gather(Tensor::zeros({job().size()}), {});
  job().run([before] { before.wait(); }).wait();
}

TEST_CASE("a call inside run() is made, or refused where GPU memory is copied through the host") {
  const auto communicator = new_communicator();
  Communicator* const inside = communicator.get();
  const Tensor buffer = filled<int64_t>(job().rank(), 10);
  const Work run = communicator->run([inside, buffer] { inside->all_reduce(buffer, {}); });
  if (!test::on_cpu() && !over_nccl()) {
    CHECK_THROWS_WITH(run.wait(), ContainsSubstring("inside run() cannot copy GPU memory"));
    return;
  }
  run.wait();
  communicator->run([] {}).wait();  // runs after the all-reduce
  const int64_t ranks = job().size();
  CHECK(differences<int64_t>(buffer, [&](int64_t i) { return sum_at(ranks, i); }) == 0);
}

TEST_CASE("the memory of a failed transfer is not freed, because MPI may still use it") {
  if (job().size() == 1 || !test::on_cpu()) return;
  job().barrier();
  const MemoryLedger& ledger = memory_ledger(Device{});
  const int64_t before = ledger.current(Category::communication);
  auto communicator = new_communicator();
  const int64_t staging = communicator->staging_bytes();
  std::weak_ptr<Storage> memory;
  if (job().rank() == 0) {
    const Tensor buffer = Tensor::zeros({job().size() * chunk_elements()});
    memory = buffer.storage();
    communicator->all_gather(buffer, {});
  }
  communicator.reset();  // fails rank 0's gather, which no other rank has called
  CHECK(memory.expired() == (job().rank() != 0));
  CHECK(ledger.current(Category::communication) - before == (job().rank() == 0 ? staging : 0));
  job().barrier();
}

TEST_CASE("a communicator holds exactly the staging that the formula gives") {
  job().barrier();
  MemoryLedger& ledger = memory_ledger(default_device());
  const int64_t before = ledger.current(Category::communication);
  const auto communicator = new_communicator();
  const int64_t held = ledger.current(Category::communication) - before;
  CHECK(held == communicator->staging_bytes());
  if (test::on_cpu()) CHECK(held == mpi_staging_bytes(job().size()));
  if (over_nccl()) CHECK(held == nccl_staging_bytes(job().size(), nccl_options));
  ledger.reset_peaks();
  run_many(*communicator, 20, largest_piece());
  CHECK(ledger.peak(Category::communication) == before + held);
}

// MPI's staging has two chunks for each peer, and one additional chunk. A single rank has no
// staging. With two to five ranks a chunk has 1 MiB.
TEST_CASE("staging for some numbers of ranks, derived by hand") {
  CHECK(mpi_staging_bytes(1) == 0);
  CHECK(mpi_staging_bytes(2) == 3 * 1'048'576);
  CHECK(mpi_staging_bytes(5) == 9 * 1'048'576);
  CHECK(mpi_staging_bytes(9) == 17 * 524'288);
  // The 20 chunks for peers share 8 MiB, which is 419,430.4 bytes each. Rounded down, this is 204
  // units of 2,048 bytes.
  CHECK(mpi_staging_bytes(11) == 21 * 417'792);
  CHECK(mpi_staging_bytes(1001) == 2001 * 65'536);
}

TEST_CASE("a call releases its buffers when it is done") {
  const Tensor buffer = Tensor::zeros({job().size() * 1000});
  // Passes a view, because a view has its own pointer to the storage. All handles of `buffer` share
  // one pointer, so the storage's use count would be 1 even while a call holds a handle.
  job().all_gather(buffer.flat(0, buffer.elements()), {}).wait();
  CHECK(buffer.storage().use_count() == 1);
}

TEST_CASE("the trace shows calls and waits with their bucket") {
  trace::take_events();
  trace::enable(true);
  const int64_t waited = waited_ns();
  // The delay is much longer than the times compared with it, because on a busy machine this thread
  // may begin to wait late.
  DelayedCommunicator slow(new_communicator(), 100ms);
  const auto ignore = [](int, int64_t, const Tensor&) {};
  slow.exchange(Tensor::zeros({job().size()}), 1, ignore, {Traffic::gradients, 7}).wait();
  job().all_gather(Tensor::zeros({job().size()}), {Traffic::parameters, 8}).wait();
  trace::enable(false);
  CHECK(waited_ns() - waited >= 15'000'000);
  int exchanges = 0;
  int waits = 0;
  int gathers = 0;
  for (const trace::Event& event : trace::take_events()) {
    if (event.track == trace::Track::communication && event.name == "exchange") {
      ++exchanges;
      CHECK(event.place.bucket == 7);
      CHECK(event.detail == "gradients, " + std::to_string(4 * job().size()) + " bytes");
    }
    if (event.track == trace::Track::communication && event.name == "all_gather") {
      ++gathers;
      CHECK(event.place.bucket == 8);
    }
    if (event.track == trace::Track::waiting && event.name == "wait reduce" &&
        event.place.bucket == 7 && event.end_ns - event.begin_ns > 15'000'000) {
      ++waits;
    }
  }
  CHECK(exchanges == 1);
  CHECK(gathers == 1);
  CHECK(waits >= 1);  // the caller's wait, and perhaps a wait by the thread of `slow`
}

TEST_CASE("a delayed communicator delays reductions, and not their caller") {
  const auto inner = new_communicator();
  DelayedCommunicator slow(inner, 30ms);
  const Tensor x = Tensor::zeros({job().size()});
  const auto ignore = [](int, int64_t, const Tensor&) {};
  const int64_t begin = trace::now_ns();
  const Work first = slow.exchange(x, 1, ignore, {});
  const Work second = slow.exchange(x, 1, ignore, {});
  const Work gather = slow.all_gather(x, {});
  const bool gathered = gather.done();
  CHECK((!gathered || trace::now_ns() - begin >= 60'000'000));
  gather.wait();  // calls run in order, so both reductions are done, too
  CHECK((first.done() && second.done()));
  CHECK(trace::now_ns() - begin >= 60'000'000);
  CHECK(slow.delayed() == 2);
  CHECK(slow.traffic().calls(Collective::exchange) == 2);
  // Over NCCL, and in staged_communicator, all_gather would refuse this buffer, because it is in
  // host memory.
  slow.all_gather_host(Tensor::zeros({job().size()}, DType::u8, Device{}), {}).wait();
  run_many(slow, 4, 1000);

  DelayedCommunicator late(inner, 0ms, 20ms);
  const int64_t again = trace::now_ns();
  late.exchange(x, 1, ignore, {});
  late.all_gather(x, {}).wait();
  CHECK(trace::now_ns() - again >= 20'000'000);
  CHECK(late.delayed() == 1);
}
