#include "dist/nccl/cuda/nccl_setup.h"

#include <mpi.h>

#include "core/cuda/check.h"
#include "dist/mpi/mpi_check.h"
#include "dist/nccl/cuda/nccl_check.h"

namespace tessera::dist {

std::pair<int, int> mpi_rank_and_size() {
  int initialized = 0;
  TESSERA_MPI(MPI_Initialized(&initialized));
  int rank = 0;
  int size = 1;
  if (initialized) {
    TESSERA_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    TESSERA_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
  }
  return {rank, size};
}

ncclComm_t make_communicator(int rank, int size, const NcclOptions& options) {
  ncclUniqueId id{};
  if (rank == 0) TESSERA_NCCL(ncclGetUniqueId(&id));
  if (size > 1) TESSERA_MPI(MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  if (options.min_ctas > 0) config.minCTAs = options.min_ctas;
  if (options.max_ctas > 0) config.maxCTAs = options.max_ctas;
  ncclComm_t comm = nullptr;
  TESSERA_NCCL(ncclCommInitRankConfig(&comm, size, id, rank, &config));
  return comm;
}

int64_t nccl_library_version() {
  int version = 0;
  TESSERA_NCCL(ncclGetVersion(&version));
  return version;
}

std::string failure_of(ncclComm_t comm) {
  ncclResult_t failure = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm, &failure);
  if (asked == ncclSuccess && (failure == ncclSuccess || failure == ncclInProgress)) return "";
  const char* const reason = ncclGetLastError(nullptr);
  return fmt::format("{} ({})", ncclGetErrorString(asked == ncclSuccess ? failure : asked),
                     reason == nullptr ? "" : reason);
}

cudaStream_t make_stream() {
  int lowest = 0;
  int highest = 0;
  TESSERA_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  // Others wait for what is sent: its kernels go before those that compute.
  TESSERA_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  return stream;
}

}  // namespace tessera::dist
