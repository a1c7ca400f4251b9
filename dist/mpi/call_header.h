// What two ranks tell each other of a call before its data moves: a rank that makes another call
// than its peer finds out, rather than wait for ever or read the bytes of another call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace tessera::dist {

struct CallHeader {
  int64_t number = 0;  // counts a communicator's collectives, or the transfers of a pair, from 1
  int64_t bytes = 0;   // of the buffer; exchange_v, all_gather_v, transfers: sent to the peer
  int32_t bucket = -1;
  int32_t group = 0;
  int32_t ranks = 0;  // exchange, reduce_scatter: contributors; broadcast: the root
  Collective collective = Collective::barrier;
  Traffic purpose = Traffic::other;
  DType dtype = DType::u8;
  uint8_t unused = 0;  // sent with the rest, so it must be initialised

  bool operator==(const CallHeader&) const = default;
  Call call() const { return {purpose, bucket, group}; }
  /// "all_gather of parameters, bucket 3 (call 17, 4096 bytes of f32)"
  std::string text() const;
};
static_assert(sizeof(CallHeader) == mpi_header_bytes);

/// The headers of one call, by rank.
struct CallHeaders {
  CallHeader own;                    // the call, as errors name it
  std::vector<CallHeader> sent;      // to each rank
  std::vector<CallHeader> expected;  // from each rank, if it makes the same call
  std::vector<CallHeader> received;  // from each rank

  explicit CallHeaders(int ranks);
  /// Every rank is to send and receive `header`.
  void set(const CallHeader& header);
};

/// Two ranks of the job, of which one reports that their calls differ.
struct Pair {
  int rank = 0;
  int peer = 0;
};

/// Names both calls and throws: `rank` makes the call `own`, in which `expected` was to come from
/// `peer`, but `theirs` came.
[[noreturn]] void fail_disagreeing(const Pair& pair, const CallHeader& own,
                                   const CallHeader& expected, const CallHeader& theirs);

}  // namespace tessera::dist
