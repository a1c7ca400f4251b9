// The header that two ranks exchange before the data of a call. By it a rank notices that its peer
// makes another call; otherwise it would wait for ever, or take the bytes of another call for its
// own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace tessera::dist {

struct CallHeader {
  int64_t number = 0;  // number of the collective, or of the transfer between two ranks, from 1
  int64_t bytes = 0;   // of the buffer; of exchange_v, all_gather_v, send_receive: sent to the peer
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

/// The headers that this rank exchanges with the others in one call.
struct CallHeaders {
  CallHeader own;                    // describes the call in errors
  std::vector<CallHeader> sent;      // to each rank
  std::vector<CallHeader> expected;  // what each rank must send if it makes the same call
  std::vector<CallHeader> received;  // from each rank

  explicit CallHeaders(int ranks);
  /// Sets own, sent and expected to `header`, for all ranks.
  void set(const CallHeader& header);
};

/// Two ranks of the job whose calls differ; `rank` reports the error.
struct Pair {
  int rank = 0;
  int peer = 0;
};

/// Throws an error that names both calls: pair.rank makes the call `own` and expected the header
/// `expected` from pair.peer, but received `theirs`.
[[noreturn]] void fail_disagreeing(const Pair& pair, const CallHeader& own,
                                   const CallHeader& expected, const CallHeader& theirs);

}  // namespace tessera::dist
