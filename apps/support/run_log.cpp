#include "apps/support/run_log.h"

#include <cerrno>
#include <cmath>
#include <cstring>

#include "core/cuda.h"
#include "core/error.h"

namespace tessera::apps {
namespace {

double rounded(double value) { return std::round(value * 1000) / 1000; }

}  // namespace

RunLog::RunLog(const std::string& path) : path_(path) {
  if (path.empty()) return;
  file_.reset(std::fopen(path.c_str(), "w"));
  if (!file_) fail_input("{}: cannot be written: {}", path, std::strerror(errno));
}

void RunLog::write(const JsonObject& line) {
  if (!file_) return;
  const std::string text = line.text() + "\n";
  if (std::fputs(text.c_str(), file_.get()) < 0 || std::fflush(file_.get()) != 0) {
    fail("{}: writing failed: {}", path_, std::strerror(errno));
  }
}

JsonObject header_begin(const char* program, const RunOptions& options) {
  return JsonObject()
      .add("type", "header")
      .add("program", program)
      .add("version", TESSERA_VERSION)
      .add("data", options.data);
}

void add_run(JsonObject& header, const RunOptions& options, const dist::World& world, int threads) {
  const Device device = world.communicator->device();
  header.add("ranks", world.size)
      .add("threads", threads)
      .add("device", dist::device_type_name(device));
  if (!device.is_cpu()) header.add("device_name", cuda::device_name(device.index));
  header.add("communicator", world.communicator->name());
  if (options.graph) header.add("graph", true);
  if (options.memory.loss_rows > 0) header.add("loss_rows", options.memory.loss_rows);
  header.add("stage", options.stage)
      .add("precision", options.memory.precision)
      .add("grad_shard", options.memory.grad_shard)
      .add("recompute", options.memory.recompute)
      .add("offload", options.memory.offload)
      .add("bucket_bytes", options.bucket_bytes)
      .add("overlap", options.overlap)
      .add("reduction", reduction_name(options.reduction))
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
      .add("trace", options.trace);
}

JsonObject step_line(const StepLine& step, const std::string& unit) {
  JsonObject line;
  line.add("type", "step")
      .add("step", step.step)
      .add("loss", step.loss)
      .add("grad_norm", step.grad_norm)
      .add("lr", step.lr);
  if (step.loss_scale) line.add("loss_scale", *step.loss_scale);
  if (step.skipped) line.add("skipped", true);
  return line.add(unit + "_per_s", rounded(step.samples_per_s))
      .add("step_ms", rounded(step.step_ms))
      .add("comm_exposed_ms", rounded(step.comm_exposed_ms));
}

JsonObject eval_line(int64_t step, float val_loss) {
  return JsonObject().add("type", "eval").add("step", step).add("val_loss", val_loss);
}

}  // namespace tessera::apps
