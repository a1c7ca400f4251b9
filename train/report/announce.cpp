#include "train/report/announce.h"

#include <spdlog/spdlog.h>

#include "core/context.h"
#include "core/cpu/gemm.h"
#include "core/cuda.h"
#include "core/text/number_text.h"

namespace tessera::train {
namespace {

void announce_device(const TrainingRun& run, DType dtype, Device device) {
  if (!device.is_cpu()) {
    spdlog::info("on {}", cuda::device_name(device.index));
    return;
  }
  if (!cpu::has_fast_gemm(dtype)) {
    spdlog::warn(
        "this CPU has no instructions for products in {}: they are computed in fp32, "
        "which is correct, but slower than training in fp32",
        precision_name(dtype));
  }
  if (run.zero.offload == optim::Offload::optimizer) announce_idle_offload();
}

// Returns the largest micro-batch size, at most batch.micro, that gives all ranks equally many
// micro-batches. Returns 0 if there is no such size.
int64_t even_micro_batch(const Batch& batch, int64_t ranks) {
  for (int64_t size = batch.micro; size > 0; --size) {
    if (batch.global % size == 0 && batch.global / size % ranks == 0) return size;
  }
  return 0;
}

}  // namespace

void announce_run(const TrainingRun& run, const std::string& model_name, const nn::Module& model,
                  const dist::World& world) {
  const int threads = thread_count();
  const DType dtype = parameter_dtype(model);
  spdlog::info("{}: {} parameters in {}, stage {}, {} x {} ({}, {} reduction)", model_name,
               grouped(model.parameter_count()), precision_name(dtype), run.zero.stage,
               counted(world.size, "rank"), counted(threads, "thread"), world.communicator->name(),
               reduction_name(run.zero.reduction));
  announce_device(run, dtype, world.communicator->device());
}

void announce_idle_offload() {
  spdlog::info("offload: a CPU's optimizer state is on the host anyway");
}

void warn_of_idle_ranks(const Batch& batch, const dist::World& world) {
  if (batch.micro_batches() % world.size == 0) return;
  const int64_t even = even_micro_batch(batch, world.size);
  spdlog::warn("{} on {}: some ranks will idle{}",
               counted(batch.micro_batches(), "micro-batch", "micro-batches"),
               counted(world.size, "rank"),
               even > 0 ? fmt::format("; micro-batches of {} divide evenly", even) : "");
}

}  // namespace tessera::train
