// Tests the trace of a job in which the ranks' clocks are hours apart, as on hosts that booted at
// different times. Times in the trace file are on rank 0's clock, and count from the start of the
// run. So the spans of all ranks must lie between the start and the end of the run. Then the job is
// split into two groups (one in a job of one rank). Each makes a run and a trace of its own.
//
//   mpirun -n 3 skewed_clocks
#include <fstream>

#include <nlohmann/json.hpp>

#include "core/trace.h"
#include "core/trace_clock.h"
#include "dist/mesh.h"
#include "tests/support/temporary_folder.h"
#include "train/report/trace_file.h"
#include "train/step_loop.h"

using namespace tessera;

namespace {

constexpr int64_t hour_ns = int64_t{3'600'000'000'000};
constexpr double minute_us = 60e6;  // tolerance: far longer than a span, far shorter than the skew
constexpr int rounds = 3;

// Every rank records one span per round, one rank after the other.
void take_turns(const dist::World& world) {
  for (int turn = 0; turn < rounds * world.size; ++turn) {
    if (turn % world.size == world.rank) {
      const trace::Scope scope("turn");
    }
    world.communicator->barrier();
  }
}

void check_file(const std::string& path, int ranks, int64_t run_ns) {
  const auto trace = nlohmann::json::parse(std::ifstream(path));
  std::vector<int> turns(static_cast<size_t>(ranks));
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] != "turn") continue;
    ++turns[event["pid"].get<size_t>()];
    const double from = event["ts"].get<double>();
    const double to = from + event["dur"].get<double>();
    const double earliest = -minute_us;
    const double latest = static_cast<double>(run_ns) / 1e3 + minute_us;
    TESSERA_CHECK(earliest <= from && from <= to && to <= latest,
                  "rank {}'s span is at [{}, {}] us, expected it in [{}, {}]",
                  event["pid"].get<int>(), from, to, earliest, latest);
  }
  for (const int count : turns) {
    TESSERA_CHECK(count == rounds, "a rank has {} spans, expected {}", count, rounds);
  }
}

void check_trace_of(const dist::World& world) {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("trace.json");
  const int64_t begin_ns = trace::now_ns();
  const auto log = train::begin_run({.trace = path}, world);
  take_turns(world);
  train::write_trace(path, world);
  if (world.rank == 0) check_file(path, world.size, trace::now_ns() - begin_ns);
}

}  // namespace

int main(int argc, char** argv) {
  return dist::run(argc, argv, [](dist::World& world) {
    trace::skew_clock(world.rank * hour_ns);
    check_trace_of(world);
    // One group is rank 0 alone. The other group has the other ranks in descending order, so with
    // three ranks in the job, ranks 1 and 0 of this group are ranks 1 and 2 of the job.
    const int color = world.rank == 0 ? 0 : 1;
    dist::World group =
        dist::world_of_group(world, world.communicator->split(color, -world.rank, "part"));
    group.comm_timeout_s = 60;
    check_trace_of(group);
    return 0;
  });
}
