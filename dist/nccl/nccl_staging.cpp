// The size of the NCCL communicator's staging. Memory plans need it in builds without CUDA too.
#include <algorithm>

#include "dist/communicator.h"

namespace tessera::dist {

// Staging has one chunk for each rank. A transfer runs in rounds. A round fills the chunks of all
// ranks by one launch of NCCL, and then launches a kernel for each contribution. These launches
// take some tens of microseconds. In this time NVLink moves about 8 MiB. So smaller chunks cost
// speed, because NVLink then waits for the launches. The options may set the size of a chunk. By
// default it is 8 MiB, or less if all chunks together would exceed 64 MiB, but at least 1 MiB.
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
