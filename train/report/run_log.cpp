#include "train/report/run_log.h"

#include <cerrno>
#include <cmath>
#include <cstring>

#include "core/context.h"
#include "core/cuda.h"
#include "core/error.h"
#include "dist/device_choice.h"

namespace tessera::train {
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

const char* version() { return TESSERA_VERSION; }

JsonObject header_begin(const std::string& program) {
  return JsonObject().add("type", "header").add("program", program).add("version", version());
}

void add_job(JsonObject& header, const dist::World& world) {
  const Device device = world.communicator->device();
  header.add("ranks", world.size)
      .add("threads", thread_count())
      .add("device", dist::device_type_name(device));
  if (!device.is_cpu()) header.add("device_name", cuda::device_name(device.index));
  header.add("communicator", world.communicator->name());
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

}  // namespace tessera::train
