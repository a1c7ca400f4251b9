// nccl_communicator in a build without CUDA.
#include "core/cuda.h"
#include "dist/communicator.h"

namespace tessera::dist {

std::shared_ptr<Communicator> nccl_communicator(int, const NcclOptions&) {
  fail("nccl: {}", cuda::unusable());
}

}  // namespace tessera::dist
