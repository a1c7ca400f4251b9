// The size of NCCL's staging, which a memory plan needs in builds without CUDA as well.
#include <algorithm>

#include "dist/communicator.h"

namespace tessera::dist {

// Staging has one chunk for each rank. The options may set the size of a chunk; by default it is 1
// to 8 MiB. Each chunk costs a launch of NCCL and one kernel launch per contribution. These
// launches take some tens of microseconds, in which NVLink moves about 8 MiB. By default, all
// chunks together take at most 64 MiB, except with chunks of 1 MiB.
int64_t nccl_staging_bytes(int64_t ranks, const NcclOptions& options) {
  constexpr int64_t unit = 256 * 8;
  constexpr int64_t MiB = 1024 * 1024;
  TESSERA_CHECK(options.chunk_bytes >= 0 && options.chunk_bytes % unit == 0,
                "nccl: chunks of {} bytes, expected a multiple of {}", options.chunk_bytes, unit);
  if (ranks <= 1) return 0;
  const int64_t chunk = std::clamp(64 * MiB / ranks, MiB, 8 * MiB) / unit * unit;
  return ranks * (options.chunk_bytes > 0 ? options.chunk_bytes : chunk);
}

}  // namespace tessera::dist
