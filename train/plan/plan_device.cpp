#include "train/plan/plan_device.h"

#include "core/cuda.h"

namespace tessera::train {

int64_t PlanDevice::staging_bytes(int64_t ranks) const {
  if (device.is_cpu()) return dist::mpi_staging_bytes(ranks);
  return nccl ? dist::nccl_staging_bytes(ranks) : dist::staged_staging_bytes(ranks);
}

std::string PlanDevice::text() const {
  return device.is_cpu() ? "" : nccl ? ", on GPUs over NCCL" : ", on GPUs over MPI";
}

PlanDevice plan_device(const dist::World& world) {
  return {world.communicator->device(), world.communicator->name() == "nccl"};
}

PlanDevice plan_device(const dist::DeviceOptions& options) {
  const bool cuda =
      options.device == "cuda" || (options.device == "auto" && cuda::device_count() > 0);
  if (!cuda) return {};
  return {{DeviceType::cuda, 0}, options.comm != "mpi"};
}

}  // namespace tessera::train
