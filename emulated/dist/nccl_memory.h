// Records which memory from ncclMemAlloc is registered with which communicator.
#pragma once

#include <nccl.h>

namespace emulated::nccl {

/// Ends all registrations with a communicator. Called when the communicator is destroyed, because a
/// later communicator may get the same handle.
void end_registrations(ncclComm_t comm);

}  // namespace emulated::nccl
