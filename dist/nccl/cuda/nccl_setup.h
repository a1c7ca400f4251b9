// What a communicator over NCCL begins with.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <string>
#include <utility>

#include "dist/communicator.h"

namespace tessera::dist {

/// Of MPI_COMM_WORLD, or {0, 1} where MPI is not initialised.
std::pair<int, int> mpi_rank_and_size();

/// Of all these ranks. Collective.
ncclComm_t make_communicator(int rank, int size, const NcclOptions& options);

/// Why the communicator cannot go on, or nothing.
std::string failure_of(ncclComm_t comm);

/// For communication.
cudaStream_t make_stream();

}  // namespace tessera::dist
