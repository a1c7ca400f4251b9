// The device and the transport of the ranks of a planned run.
#pragma once

#include <string>

#include "dist/device_choice.h"

namespace tessera::train {

struct PlanDevice {
  Device device = {};
  bool nccl = false;  // true: ranks communicate over NCCL; false: over MPI

  /// Returns the bytes that the transport allocates on the device in a job of `ranks` ranks.
  int64_t staging_bytes(int64_t ranks) const;
  /// True if GPUs communicate through the host.
  bool staged() const { return !device.is_cpu() && !nccl; }
  /// Returns the bytes of the header that a collective call sends to every other rank in
  /// addition to the data.
  int64_t header_bytes() const { return nccl ? 0 : dist::mpi_header_bytes; }
  /// Returns a text for a headline: empty for the CPU, else for instance ", on GPUs over NCCL".
  std::string text() const;
};

/// Returns the device and transport that a running job has chosen.
PlanDevice plan_device(const dist::World& world);
/// Returns the device and transport that a job with these options will choose, if each of its ranks
/// has a GPU of its own. The device `auto` means CUDA if this process finds a usable GPU. On GPUs
/// the transport is NCCL unless options.comm is `mpi`.
PlanDevice plan_device(const dist::DeviceOptions& options);

}  // namespace tessera::train
