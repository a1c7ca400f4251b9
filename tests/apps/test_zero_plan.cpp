// Tests zero_plan's results. Totals of memory leave out an unknown workspace. The search for the
// largest model must find the same number of layers as a loop over all numbers of layers. JSON and
// tables show the plan.
#include <nlohmann/json.hpp>

#include "apps/zero_plan_report.h"
#include "core/context.h"
#include "core/cuda.h"
#include "tests/support/catch.h"
#include "tests/support/plan_command_line.h"
#include "tests/support/reference.h"
#include "train/plan/plan_gpt.h"
#include "train/plan/plan_stage.h"
#include "train/plan/plan_table.h"
#include "train/plan/run_plan.h"

using namespace tessera;
using namespace tessera::apps;
using namespace tessera::train;
using test::parse_plan;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("without a GPU, its workspace is reported as unknown") {
  const PlanOptions options = parse_plan({"--device", "cuda", "--ranks", "2"});
  const std::vector<StagePlan> plans = plan_stages(options);
  if (cuda::device_count() > 0) {
    CHECK(plans[0].plan.workspace.has_value());
    return;
  }
  for (const StagePlan& stage : plans) {
    CHECK_FALSE(stage.plan.workspace.has_value());
    CHECK(stage.plan.peak() == stage.plan.memory() + *stage.plan.activations);
  }
  const std::string text = plan_text(options, plans);
  CHECK_THAT(text, ContainsSubstring("workspace is unknown here, and not part of any total"));
  CHECK_THAT(text, ContainsSubstring(cuda::unusable()));
  const auto json = nlohmann::json::parse(plan_json(options, plans).text());
  CHECK(json["device"] == "cuda");
  CHECK_FALSE(json["stages"][0]["memory"].contains("workspace"));
  CHECK(json["stages"][0]["memory"].contains("activations"));
  const PlanOptions on_cpu = parse_plan({"--ranks", "2"});
  CHECK_THAT(plan_text(on_cpu, plan_stages(on_cpu)), !ContainsSubstring("unknown"));
}

TEST_CASE("the largest model has the most layers that fit in memory") {
  const test::ThreadCountRestorer restore;
  set_thread_count(1);
  // With these sizes an evaluation needs more workspace than a step.
  const char* const eval_every = GENERATE("250", "0");
  const PlanOptions options =
      parse_plan({"--width", "64", "--context", "16", "--vocab", "1024", "--ranks", "3",
                  "--staging", "0", "--eval-every", eval_every});
  for (const int stage : {0, 1, 2, 3}) {
    for (const int64_t memory : {int64_t{4} << 20, int64_t{12} << 20, int64_t{60} << 20}) {
      LargestModel walked;
      for (int64_t layers = 1;; ++layers) {
        optim::PlanInput input = options.run;
        models::GptConfig config = options.model;
        config.layers = layers;
        input.parameters = gpt_parameters(config, options.dtype);
        input.stage = stage;
        optim::Plan plan = optim::plan(input, 0);
        add_activations(plan, config, options.dtype, input.batch.micro, {});
        if (options.evaluates) add_evaluation(plan, config, options.dtype, input.batch.micro, {});
        const int64_t bytes = plan.peak();
        if (bytes > memory) break;
        walked = {layers, parameter_elements(input.parameters), bytes, false};
      }
      const LargestModel found = largest_model(options, stage, memory);
      CAPTURE(stage, memory);
      CHECK(found.layers == walked.layers);
      CHECK(found.parameters == walked.parameters);
      CHECK(found.bytes == walked.bytes);
      CHECK_FALSE(found.at_limit);
    }
  }
  CHECK(largest_model(options, 0, 1000).layers == 0);
  const PlanOptions tiny = parse_plan({"--width", "4"});
  CHECK(largest_model(tiny, 2, int64_t{1} << 60).layers == 16384);
  CHECK(largest_model(tiny, 2, int64_t{1} << 60).at_limit);
}

TEST_CASE("zero_plan plans the bytes of a run with and without evaluations") {
  const test::ThreadCountRestorer restore;
  set_thread_count(1);  // with many threads, attention needs more workspace than an evaluation
  const std::vector<const char*> sizes = {"--layers=2",   "--heads=2", "--width=32",
                                          "--context=16", "--batch=4", "--micro-batch=2",
                                          "--vocab=1024", "--ranks=2"};
  const auto plan_with = [&](const std::vector<const char*>& flags, int64_t eval_every) {
    std::vector<const char*> arguments = sizes;
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const PlanOptions options = parse_plan(arguments);
    CHECK(nlohmann::json::parse(plan_json(options, {}).text())["evaluates"] == (eval_every > 0));
    CHECK((plan_text(options, {}).find(", no evaluations\n") == std::string::npos) ==
          (eval_every > 0));
    const std::vector<StagePlan> plans = plan_stages(options);
    const models::Gpt model(options.model);
    for (const StagePlan& plan : plans) {
      const TrainingRun run{
          .rule = optim::AdamW{},
          .zero = {.stage = plan.stage, .bucket_bytes = options.run.bucket_bytes},
          .loop = {.steps = 10, .batch = options.run.batch, .eval_every = eval_every}};
      const optim::Plan of_run = plan_run(run, model, {.ranks = 2});
      CAPTURE(plan.stage);
      CHECK(plan.plan.workspace == of_run.workspace);
      CHECK(plan.plan.activations == of_run.activations);
      CHECK(plan.plan.peak() == of_run.peak());
    }
    return plans.at(0).plan.workspace.value();
  };
  const int64_t usual = plan_with({}, 250);
  CHECK(plan_with({"--eval-every", "1"}, 1) == usual);
  CHECK(plan_with({"--eval-every", "0"}, 0) < usual);
}

TEST_CASE("in the search for the largest model, only bytes beyond int64 do not fit") {
  PlanOptions options = parse_plan({"--width", "4"});
  options.run.batch.micro = options.run.batch.global = int64_t{1} << 50;
  CHECK(largest_model(options, 2, INT64_MAX).layers == 0);
  // Graphs on the CPU are refused. This error must not be taken for a model that is too large.
  options = parse_plan({"--width", "4"});
  options.run.graph = true;
  CHECK_THROWS_WITH(largest_model(options, 2, INT64_MAX), ContainsSubstring("graphs need CUDA"));
}

TEST_CASE("the JSON has the values of the plan") {
  const PlanOptions options =
      parse_plan({"--preset", "gpt2", "--ranks", "8", "--ranks-per-node", "4", "--precision",
                  "bf16", "--memory", "24GiB", "--flops", "100T", "--bandwidth", "10GB"});
  const std::vector<StagePlan> plans = plan_stages(options);
  const auto json = nlohmann::json::parse(plan_json(options, plans).text());
  CHECK(json["model"]["parameters"] == 124'439'808);
  CHECK(json["micro_steps"] == 15);
  REQUIRE(json["stages"].size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    const auto& stage = json["stages"][i];
    const optim::Plan& plan = plans[i].plan;
    CHECK(stage["stage"] == i);
    CHECK(stage["memory"]["parameters"] == plan.parameters);
    CHECK(stage["memory"]["activations"] == plan.activations.value());
    CHECK(stage["memory"]["workspace"] == plan.workspace.value());
    CHECK(stage["memory"]["total"] == plan.peak());
    CHECK(stage["memory"]["node"] == 4 * plan.peak());
    CHECK(stage["parts"]["masters"] == plan.parts.masters);
    CHECK(stage["traffic"]["total"] == plan.sent());
    CHECK(stage["largest"]["layers"] == plans[i].largest->layers);
    CHECK(stage["time"]["step_ms"].get<double>() == Approx(plans[i].time->total() * 1e3));
  }
  // Each stage needs less memory than the stage before.
  for (size_t i = 1; i < 4; ++i) CHECK(plans[i].plan.memory() < plans[i - 1].plan.memory());
}

TEST_CASE("the text has the tables and columns that were asked for") {
  const PlanOptions options = parse_plan({"--ranks", "2", "--ranks-per-node", "2", "--memory",
                                          "1GB", "--flops", "1T", "--bandwidth", "1GB"});
  std::vector<StagePlan> plans = plan_stages(options);
  const std::string text = plan_text(options, plans);
  CHECK_THAT(text, ContainsSubstring("nano: 834,304 parameters"));
  CHECK_THAT(text, ContainsSubstring("all of a node"));
  CHECK_THAT(text, ContainsSubstring("activations"));
  CHECK_THAT(text, ContainsSubstring("workspace"));
  CHECK_THAT(text, ContainsSubstring("The most layers that fit 1,000,000,000 bytes a rank"));
  CHECK_THAT(text, ContainsSubstring("exposed ms"));
  CHECK_THAT(text, !ContainsSubstring("on the host"));
  // The peak includes activations and workspace if they are known.
  optim::Plan& plan = plans[0].plan;
  CHECK(plan.peak() == plan.memory() + plan.activations.value() + plan.workspace.value());
  plan.activations = plan.workspace = std::nullopt;
  CHECK(plan.peak() == plan.memory());
  const std::vector<PlannedRun> runs = {{0, 2, plan}};
  CHECK_THAT(memory_table(runs), !ContainsSubstring("activations"));
}
