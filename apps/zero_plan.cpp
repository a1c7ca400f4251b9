// Estimates the memory, the traffic and the time of training a GPT with ZeRO, without any training.
// With --table, estimates the memory and the traffic of training one large embedding table instead.
//
//   zero_plan --preset gpt2-xl --ranks 64 --precision bf16 --memory 24GiB
//   zero_plan --preset gpt2-xl --ranks 1000000 --ranks-per-node 8 --stage 3 --flops 150T
//             --bandwidth 12GB --node-bandwidth 200GB --latency 5us --json plan.json
//   zero_plan --table 1000000x64 --lookups 4096 --zipf 1.05 --ranks 8
//
// zero_plan only calculates: one process plans for any number of ranks, and allocates no weights.
#include <cstdio>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "apps/cli/command_line.h"
#include "apps/cli/paths.h"
#include "apps/zero_plan_options.h"
#include "apps/zero_plan_report.h"
#include "apps/zero_plan_table.h"
#include "core/context.h"
#include "core/text/output_file.h"
#include "dist/device_choice.h"
#include "train/plan/plan_stage.h"
#include "train/report/announce.h"
#include "train/report/progress.h"

namespace tessera::apps {
namespace {

void run(const PlanOptions& options) {
  train::set_up_messages(true);
  if (options.idle_offload) train::announce_idle_offload();
  if (options.table) {
    if (!options.json.empty()) fail_input("--json is for a GPT, not for --table");
    fmt::print("{}", table_plan_text(options));
    return;
  }
  const bool to_file = !options.json.empty() && options.json != "-";
  if (to_file) check_output_path("--json", options.json);
  set_thread_count(
      dist::threads_per_rank(options.threads, static_cast<int>(options.ranks_per_node)));
  const std::vector<train::StagePlan> plans = train::plan_stages(options);
  if (options.json == "-") {
    fmt::print("{}\n", plan_json(options, plans).text());
    return;
  }
  if (to_file) {
    OutputFile file(options.json);
    file.write(plan_json(options, plans).text() + "\n");
    file.commit();
  }
  fmt::print("{}", plan_text(options, plans));
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  using namespace tessera;
  return apps::run_alone([&] {
    const auto [options, help] = apps::parse_plan_command_line(argc, argv);
    if (help.empty()) {
      apps::run(options);
    } else {
      fmt::print("{}", help);
    }
  });
}
