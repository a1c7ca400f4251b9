// Tests zero_plan's results. Totals of memory leave out an unknown workspace. The search for the
// largest model must find the same number of layers as a loop over all numbers of layers. JSON and
// tables show the plan.
#include <nlohmann/json.hpp>

#include "apps/zero_plan_report.h"
#include "core/cuda.h"
#include "tests/support/catch.h"
#include "tests/support/plan_command_line.h"
#include "train/plan/plan_gpt.h"
#include "train/plan/plan_stage.h"
#include "train/plan/plan_table.h"

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
  const PlanOptions options = parse_plan({"--width", "64", "--ranks", "3", "--staging", "0"});
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
