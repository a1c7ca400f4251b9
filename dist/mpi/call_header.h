// What ranks tell each other of a collective before its data moves: whoever makes another call than
// its peers learns it, rather than wait for ever or read the bytes of another call.
#pragma once

#include <cstdint>
#include <string>

#include "dist/communicator.h"

namespace tessera::dist {

struct CallHeader {
  int64_t number = 0;  // of the communicator's collectives, from 1
  int64_t bytes = 0;   // of the buffer
  int32_t bucket = -1;
  int32_t group = 0;
  int32_t ranks = 0;  // exchange, reduce_scatter: contributors; broadcast: the root
  Collective collective = Collective::barrier;
  Traffic purpose = Traffic::other;
  DType dtype = DType::u8;
  uint8_t unused = 0;  // sent as the rest: nothing of it is uninitialised

  bool operator==(const CallHeader&) const = default;
  Call call() const { return {purpose, bucket, group}; }
  /// "all_gather of parameters, bucket 3 (call 17, 4096 bytes of f32)"
  std::string text() const;
};
static_assert(sizeof(CallHeader) == mpi_header_bytes);

/// Says both calls; throws.
[[noreturn]] void fail_disagreeing(int rank, const CallHeader& own, int peer,
                                   const CallHeader& theirs);

}  // namespace tessera::dist
