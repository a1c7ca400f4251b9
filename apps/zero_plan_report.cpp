#include "apps/zero_plan_report.h"

#include <array>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/text/number_text.h"
#include "core/version.h"
#include "train/plan/plan_gpt.h"
#include "train/plan/plan_table.h"
#include "train/report/run_log.h"
#include "train/report/table.h"

namespace tessera::apps {
namespace {

int64_t model_parameters(const PlanOptions& options) {
  return train::parameter_elements(train::gpt_parameters(options.model, options.dtype));
}

double tokens(const PlanOptions& options) {
  return static_cast<double>(options.run.batch.global) *
         static_cast<double>(options.model.context);
}

std::string title(const PlanOptions& options) {
  const models::GptConfig& m = options.model;
  const optim::PlanInput& run = options.run;
  const std::string sums =
      options.dtype == DType::f32 ? ""
                                  : fmt::format(", gradient sums {}", dtype_name(run.sum_dtype));
  return fmt::format(
      "{}: {} parameters ({}, {}, width {}, context {}, vocabulary {})\n"
      "{}{}, {}, {}, global batch {} in micro-batches of {}, so {}\n"
      "buckets of {} bytes, {} reduction, overlap {}{}{}{}{}\n\n",
      options.name, grouped(model_parameters(options)), counted(m.layers, "layer"),
      counted(m.heads, "head"), m.width, m.context, m.vocab, dtype_name(options.dtype), sums,
      options.optimizer, counted(run.ranks, "rank"), run.batch.global, run.batch.micro,
      counted(run.batch.micro_steps(run.ranks), "micro-step"), grouped(run.bucket_bytes),
      train::reduction_name(run.reduction), run.overlap ? "on" : "off",
      m.recompute ? ", blocks recomputed" : "", run.offload ? ", optimizer offloaded" : "",
      options.evaluates ? "" : ", no evaluations", options.device.text());
}

std::string largest_table(const PlanOptions& options, const std::vector<train::StagePlan>& plans) {
  train::Table table({"stage", "layers", "parameters", "bytes"});
  for (const train::StagePlan& plan : plans) {
    const train::LargestModel& l = *plan.largest;
    if (l.layers == 0) {
      table.add({std::to_string(plan.stage), "none fits", "-", "-"});
    } else {
      table.add({std::to_string(plan.stage), (l.at_limit ? ">= " : "") + grouped(l.layers),
                 grouped(l.parameters), grouped(l.bytes)});
    }
  }
  return fmt::format("\nThe most layers that fit {} bytes a rank\n{}", grouped(*options.memory),
                     table.text());
}

std::string time_table(const PlanOptions& options, const std::vector<train::StagePlan>& plans) {
  const auto ms = [](double seconds) { return fmt::format("{:.3f}", seconds * 1e3); };
  train::Table table(
      {"stage", "compute ms", "exposed ms", "step ms", "exposed", "communication ms", "tokens/s"});
  for (const train::StagePlan& plan : plans) {
    const optim::StepTime& t = *plan.time;
    table.add({std::to_string(plan.stage), ms(t.compute), ms(t.exposed), ms(t.total()),
               fmt::format("{:.1f} %", 100 * t.exposed / t.total()), ms(t.communication),
               fmt::format("{:.0f}", tokens(options) / t.total())});
  }
  return fmt::format("\nEstimated time of a step; exposed is waiting for communication\n{}",
                     table.text());
}

JsonObject memory_json(const PlanOptions& options, const optim::Plan& plan) {
  JsonObject json;
  json.add("parameters", plan.parameters)
      .add("gathered_therein", plan.parts.gathered)
      .add("gradients", plan.gradients)
      .add("optimizer_state", plan.optimizer_state)
      .add("communication", plan.communication);
  if (plan.activations) json.add("activations", *plan.activations);
  if (plan.workspace) json.add("workspace", *plan.workspace);
  return json.add("total", plan.peak())
      .add("host", JsonObject()
                       .add("optimizer_state", plan.host.optimizer_state)
                       .add("communication", plan.host.communication)
                       .add("activations", plan.host.activations))
      .add("node", train::node_bytes(plan, options.run.ranks, options.ranks_per_node))
      .add("padding_therein", plan.padding);
}

JsonObject parts_json(const optim::PlanParts& parts) {
  return JsonObject()
      .add("values", parts.values)
      .add("gathered", parts.gathered)
      .add("buckets", parts.buckets)
      .add("accumulators", parts.accumulators)
      .add("gathered_sums", parts.gathered_sums)
      .add("masters", parts.masters)
      .add("state", parts.state)
      .add("staging", parts.staging)
      .add("saved", parts.saved)
      .add("texts", parts.texts)
      .add("scattered", parts.scattered)
      .add("norms", parts.norms)
      .add("losses", parts.losses)
      .add("flags", parts.flags)
      .add("scalars", parts.scalars)
      .add("fetched", parts.fetched)
      .add("crossing", parts.crossing)
      .add("mirrors", parts.mirrors);
}

JsonObject traffic_json(const optim::Plan& plan) {
  JsonObject json;
  for (int i = 0; i < dist::traffic_count; ++i) {
    const auto purpose = static_cast<dist::Traffic>(i);
    if (purpose == dist::Traffic::statistics || purpose == dist::Traffic::saves ||
        purpose == dist::Traffic::other)
      continue;
    json.add(dist::traffic_name(purpose), plan.traffic[static_cast<size_t>(i)]);
  }
  return json.add("total", plan.sent());
}

int64_t sum(const std::array<int64_t, dist::traffic_count>& traffic) {
  return std::accumulate(traffic.begin(), traffic.end(), int64_t{0});
}

JsonObject stage_json(const PlanOptions& options, const train::StagePlan& stage) {
  JsonObject json;
  json.add("stage", stage.stage)
      .add("memory", memory_json(options, stage.plan))
      .add("parts", parts_json(stage.plan.parts))
      .add("traffic", traffic_json(stage.plan));
  if (options.run.saves) json.add("save_traffic", sum(stage.plan.save_traffic));
  if (stage.largest) {
    json.add("largest", JsonObject()
                            .add("layers", stage.largest->layers)
                            .add("parameters", stage.largest->parameters)
                            .add("bytes", stage.largest->bytes)
                            .add("at_limit", stage.largest->at_limit));
  }
  if (stage.time) {
    json.add("time", JsonObject()
                         .add("compute_ms", stage.time->compute * 1e3)
                         .add("exposed_ms", stage.time->exposed * 1e3)
                         .add("step_ms", stage.time->total() * 1e3)
                         .add("communication_ms", stage.time->communication * 1e3)
                         .add("tokens_per_s", tokens(options) / stage.time->total())
                         .add("flops", stage.time->flops)
                         .add("moved_bytes", stage.time->moved_bytes)
                         .add("update_bytes", stage.time->update_bytes));
  }
  return json;
}

}  // namespace

std::string plan_text(const PlanOptions& options, const std::vector<train::StagePlan>& plans) {
  std::vector<train::PlannedRun> runs;
  for (const train::StagePlan& plan : plans)
    runs.push_back({plan.stage, options.run.ranks, plan.plan});
  std::string text = title(options);
  text += fmt::format("Memory of rank 0, in bytes\n{}",
                      train::memory_table(runs, options.ranks_per_node));
  text += fmt::format("\nTraffic that rank 0 sends in one step, in bytes\n{}",
                      train::traffic_table(runs));
  if (options.memory) text += largest_table(options, plans);
  if (options.rates) text += time_table(options, plans);
  return text;
}

JsonObject plan_json(const PlanOptions& options, const std::vector<train::StagePlan>& plans) {
  const models::GptConfig& m = options.model;
  const optim::PlanInput& run = options.run;
  std::vector<std::string> stages;
  for (const train::StagePlan& plan : plans) stages.push_back(stage_json(options, plan).text());
  return JsonObject()
      .add("program", "zero_plan")
      .add("version", version())
      .add("preset", options.name)
      .add("model", JsonObject()
                        .add("layers", m.layers)
                        .add("heads", m.heads)
                        .add("width", m.width)
                        .add("context", m.context)
                        .add("vocab", m.vocab)
                        .add("recompute", m.recompute)
                        .add("parameters", model_parameters(options)))
      .add("dtype", dtype_name(options.dtype))
      .add("sum_dtype", dtype_name(run.sum_dtype))
      .add("optimizer", options.optimizer)
      .add("offload", run.offload)
      .add("device", dist::device_type_name(run.device))
      .add("ranks", run.ranks)
      .add("ranks_per_node", options.ranks_per_node)
      .add("global_batch", run.batch.global)
      .add("micro_batch", run.batch.micro)
      .add("micro_steps", run.batch.micro_steps(run.ranks))
      .add("bucket_bytes", run.bucket_bytes)
      .add("overlap", run.overlap)
      .add("reduction", train::reduction_name(run.reduction))
      .add("evaluates", options.evaluates)
      .raw("stages", fmt::format("[{}]", fmt::join(stages, ",")));
}

}  // namespace tessera::apps
