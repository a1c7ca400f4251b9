// Measures the time and bandwidth of each collective, and prints them in nccl-tests' columns. Every
// received element is checked; if any is wrong, the exit code is 1.
//
//   mpirun -n 4 comm_bench --device cpu                             over MPI, in host memory
//   mpirun -n 4 comm_bench --device cuda --comm mpi                 GPU memory, through the host
//   mpirun -n 4 comm_bench --device cuda --comm nccl --json nccl.json
//   mpirun -n 4 comm_bench --groups 2                               two halves at the same time
#include <cstdio>
#include <vector>

#include <fmt/format.h>

#include "apps/cli/agreement.h"
#include "apps/cli/command_line.h"
#include "apps/cli/paths.h"
#include "apps/comm_bench/comm_measure.h"
#include "apps/comm_bench/comm_report.h"
#include "apps/comm_bench_options.h"
#include "core/context.h"
#include "core/error.h"
#include "core/text/number_text.h"
#include "core/text/output_file.h"
#include "dist/bootstrap.h"
#include "dist/device_choice.h"
#include "dist/host_buffer.h"
#include "dist/mesh.h"

namespace tessera::apps {
namespace {

/// Measures the collectives in `options` among the ranks of `world`. `world` is one group of the
/// ranks of `job`, or all ranks of `job`. If `prints`, prints the table of each collective as soon
/// as the collective is measured.
std::vector<CommResult> measure(const CommOptions& options, const dist::World& world,
                                const dist::World& job, bool prints) {
  const std::vector<int64_t> sizes =
      options.sizes.in_units_of(world.size * dtype_size(options.dtype));
  CommMeasurement measurement(*world.communicator, {.dtype = options.dtype,
                                                    .max_bytes = sizes.back(),
                                                    .iterations = options.iterations,
                                                    .warmup = options.warmup});
  if (prints) fmt::print("{}", comm_title(options, world));
  std::vector<CommResult> all;
  for (const dist::Collective collective : options.collectives) {
    std::vector<CommResult> results;
    for (const int64_t bytes : sizes) {
      job.communicator->barrier();  // so that all groups start this measurement together
      results.push_back(measurement.measure(collective, bytes));
    }
    if (prints) fmt::print("{}", comm_table(results, options.dtype, world.size));
    check_output();  // flush, and fail if the output is lost, before the next measurement
    all.insert(all.end(), results.begin(), results.end());
  }
  return all;
}

/// Returns the group of this rank. Each group consists of neighbouring ranks.
dist::World group_of(const dist::World& world, int64_t groups) {
  if (groups == 0) return world;
  if (world.size % groups != 0) {
    fail_input("--groups is {}, expected a divisor of the {}", groups, counted(world.size, "rank"));
  }
  const int64_t group = world.rank * groups / world.size;
  return dist::world_of_group(
      world, world.communicator->split(static_cast<int>(group), world.rank, "measured"));
}

/// Returns the number of wrong elements in all groups. CommResult::wrong is already the number for
/// the whole group, so only rank 0 of each group contributes.
int64_t wrong_in_job(const std::vector<CommResult>& results, const dist::World& group,
                     const dist::World& job) {
  dist::HostBuffer counts(job.size, DType::i64, *job.communicator);
  int64_t& own = counts.data<int64_t>()[job.rank];
  own = 0;
  for (const CommResult& result : results) own += group.rank == 0 ? result.wrong : 0;
  counts.all_gather(*job.communicator, dist::Traffic::other).wait();
  int64_t sum = 0;
  for (int r = 0; r < job.size; ++r) sum += counts.data<int64_t>()[r];
  return sum;
}

void write_json(const CommOptions& options, const dist::World& world,
                const std::vector<CommResult>& results) {
  const std::string text = comm_json(options, world, results).text() + "\n";
  if (options.json == "-") {
    fmt::print("{}", text);
    return;
  }
  OutputFile file(options.json);
  file.write(text);
  file.commit();
}

int run(int argc, char** argv, dist::World& world) {
  const bool talks = world.rank == 0;
  const auto [options, help, flags] = parse_comm_command_line(argc, argv);
  check_command_lines(world, "comm_bench", flags, options.devices);
  if (!help.empty()) {
    if (talks) fmt::print("{}", help);
    return 0;
  }
  dist::choose_devices(world, options.devices);
  set_thread_count(dist::threads_per_rank(0, world.local_size));
  const bool to_file = !options.json.empty() && options.json != "-";
  if (talks && to_file) check_output_path("--json", options.json);

  const dist::World group = group_of(world, options.groups);
  const std::vector<CommResult> results =
      measure(options, group, world, talks && options.json != "-");
  if (talks && !options.json.empty()) write_json(options, group, results);
  const int64_t wrong = wrong_in_job(results, group, world);
  if (wrong == 0) return 0;
  if (talks) {
    std::fputs(fmt::format("error: {} {} wrong; see the {}{}\n", counted(wrong, "element"),
                           wrong == 1 ? "is" : "are",
                           options.json == "-" ? "members \"wrong\"" : "column #wrong",
                           options.groups > 1 ? ", or another group" : "")
                   .c_str(),
               stderr);
  }
  return 1;
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  return tessera::apps::run_job(argc, argv, [&](tessera::dist::World& world) {
    return tessera::apps::run(argc, argv, world);
  });
}
