#include "apps/cli/run_header.h"

#include <cmath>

#include "train/report/run_log.h"
#include "train/tuned_file.h"

namespace tessera::apps {

JsonObject header_begin(const char* program, const RunOptions& options) {
  return train::header_begin(program).add("data", options.data);
}

void add_run(JsonObject& header, const RunOptions& options, const dist::World& world) {
  train::add_job(header, world);
  if (options.graph) header.add("graph", true);
  if (options.memory.loss_rows > 0) header.add("loss_rows", options.memory.loss_rows);
  header.add("stage", options.stage)
      .add("precision", options.memory.precision)
      .add("grad_shard", options.memory.grad_shard)
      .add("recompute", options.memory.recompute)
      .add("offload", options.memory.offload)
      .add("bucket_bytes", options.bucket_bytes)
      .add("overlap", options.overlap)
      .add("reduction", train::reduction_name(options.reduction))
      .add("steps", options.steps)
      .add("global_batch", options.batch.global)
      .add("micro_batch", options.batch.micro)
      .add("optimizer", options.optimizer)
      .add("lr", options.lr)
      .add("min_lr", options.min_lr)
      .add("warmup", options.warmup)
      .add("weight_decay", options.weight_decay)
      .add("beta1", options.beta1)
      .add("beta2", options.beta2)
      .add("clip", options.clip)
      .add("seed", options.seed)
      .add("eval_every", options.eval_every)
      .add("init", options.init)
      .add("tuned", options.tuned)
      .add("save", options.save)
      .add("trace", options.trace)
      .add("report", options.report)
      .add("csv", options.csv);
  if (!train::tuned_table().empty()) header.add("tuned_digest", train::tuned_digest());
}

std::string add_epoch(JsonObject& line, const std::optional<double>& epochs) {
  if (!epochs) return "";
  line.add("epoch", std::round(*epochs * 1000) / 1000);
  return fmt::format("epoch {:.4g}  ", *epochs);
}

}  // namespace tessera::apps
