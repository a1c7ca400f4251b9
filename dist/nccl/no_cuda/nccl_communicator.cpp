// nccl_communicator in a build without CUDA.
#include "core/cuda.h"
#include "dist/communicator.h"

namespace tessera::dist {

std::shared_ptr<Communicator> nccl_communicator(int, const NcclOptions&) {
  fail("nccl: {}", cuda::unusable());
}

int64_t nccl_library_version() { return 0; }

}  // namespace tessera::dist
