#include "apps/support/announce.h"

#include <spdlog/spdlog.h>

#include "apps/support/table.h"
#include "core/context.h"
#include "core/cuda.h"
#include "core/gemm.h"
#include "core/number_text.h"

namespace tessera::apps {
namespace {

const char* plural(int count) { return count == 1 ? "" : "s"; }

void announce_device(const RunOptions& options, Device device) {
  if (!device.is_cpu()) {
    spdlog::info("on {}", cuda::device_name(device.index));
    return;
  }
  if (!cpu::has_fast_gemm(parameter_dtype(options.memory))) {
    spdlog::warn("this CPU has no instructions for products in {}: they are computed in fp32, "
                 "which is correct, but slower than --precision fp32",
                 options.memory.precision);
  }
  if (options.memory.offload == "optimizer") {
    spdlog::info("--offload optimizer: a CPU's state is on the host anyway");
  }
}

// The largest micro-batch, up to the present one, of which every rank gets as many.
int64_t even_micro_batch(const Batch& batch, int64_t ranks) {
  for (int64_t size = batch.micro; size > 1; --size) {
    if (batch.global % size == 0 && batch.global / size % ranks == 0) return size;
  }
  return 1;
}

}  // namespace

void announce_run(const RunOptions& options, const std::string& model, int64_t parameters,
                  const dist::World& world) {
  const int threads = thread_count();
  spdlog::info("{}: {} parameters in {}, stage {}, {} rank{} x {} thread{} ({}, {} reduction)",
               model, grouped(parameters), options.memory.precision, options.stage, world.size,
               plural(world.size), threads, plural(threads), world.communicator->name(),
               reduction_name(options.reduction));
  announce_device(options, world.communicator->device());
  if (options.batch.micro_batches() % world.size != 0) {
    spdlog::warn("{} micro-batches on {} ranks: some wait; a --micro-batch of {} shares evenly",
                 options.batch.micro_batches(), world.size,
                 even_micro_batch(options.batch, world.size));
  }
}

}  // namespace tessera::apps
