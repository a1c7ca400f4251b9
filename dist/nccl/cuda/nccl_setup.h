// Creates NCCL's own communicator (ncclComm_t) and the stream for an NcclCommunicator. Also asks
// NCCL whether an ncclComm_t has failed.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <string>

#include "dist/communicator.h"

namespace tessera::dist {

/// Connects all ranks of the job. Collective.
ncclComm_t make_communicator(int rank, int size, const NcclOptions& options);

/// Connects the ranks of `comm` that give the same color, in the order of their keys; nullptr for a
/// negative color. Collective.
ncclComm_t split_communicator(ncclComm_t comm, int color, int key, const NcclOptions& options);

/// Returns why the communicator has failed; empty if it has not failed.
std::string failure_of(ncclComm_t comm);

/// Creates a stream for communication, of the highest priority.
cudaStream_t make_stream();

}  // namespace tessera::dist
