// Where the ranks of a planned run compute, and over what they communicate.
#pragma once

#include <string>

#include "dist/device_choice.h"

namespace tessera::train {

struct PlanDevice {
  Device device = {};
  bool nccl = false;  // else over MPI

  /// What the transport holds on the device in a job of `ranks` ranks.
  int64_t staging_bytes(int64_t ranks) const;
  /// Whether what a GPU sends passes through the host.
  bool staged() const { return !device.is_cpu() && !nccl; }
  /// What a call sends to each other rank besides its data.
  int64_t header_bytes() const { return nccl ? 0 : dist::mpi_header_bytes; }
  /// For a headline: nothing for the CPU, else ", on GPUs over NCCL".
  std::string text() const;
};

/// The device and transport of a job that has chosen them.
PlanDevice plan_device(const dist::World& world);
/// What a job with these options is going to choose. `auto` is CUDA where this process finds a
/// usable GPU, and then NCCL.
PlanDevice plan_device(const dist::DeviceOptions& options);

}  // namespace tessera::train
