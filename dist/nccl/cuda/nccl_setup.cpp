#include "dist/nccl/cuda/nccl_setup.h"

#include <mpi.h>

#include "core/cuda/check.h"
#include "dist/mpi/mpi_check.h"
#include "dist/nccl/cuda/nccl_check.h"

namespace tessera::dist {

namespace {

ncclConfig_t config_of(const NcclOptions& options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  if (options.min_ctas > 0) config.minCTAs = options.min_ctas;
  if (options.max_ctas > 0) config.maxCTAs = options.max_ctas;
  return config;
}

}  // namespace

ncclComm_t make_communicator(int rank, int size, const NcclOptions& options) {
  ncclUniqueId id{};
  if (rank == 0) TESSERA_NCCL(ncclGetUniqueId(&id));
  if (size > 1) TESSERA_MPI(MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD));
  ncclConfig_t config = config_of(options);
  ncclComm_t comm = nullptr;
  TESSERA_NCCL(ncclCommInitRankConfig(&comm, size, id, rank, &config));
  return comm;
}

ncclComm_t split_communicator(ncclComm_t comm, int color, int key, const NcclOptions& options) {
  ncclConfig_t config = config_of(options);
  ncclComm_t part = nullptr;
  TESSERA_NCCL(
      ncclCommSplit(comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &part, &config));
  return part;
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
  // High priority: other ranks wait for the data, so NCCL's kernels run before compute kernels.
  TESSERA_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
  return stream;
}

}  // namespace tessera::dist
