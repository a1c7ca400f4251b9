// The header that two ranks exchange before the data of a call. The header shows if the peer makes
// a different call. Without headers, a rank whose peer makes a different call would wait for ever,
// or would receive the bytes of the wrong call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/mpi/channel.h"

namespace tessera::dist {

struct CallHeader {
  /// The call's number, counted from 1. Collectives are counted for each communicator, transfers
  /// for each pair of ranks.
  int64_t number = 0;
  int64_t bytes = 0;   // of the buffer; in exchange_v, all_gather_v, send_receive: sent to the peer
  int32_t bucket = -1;
  int32_t group = 0;
  /// The meaning depends on the collective:
  ///  - exchange, reduce_scatter: the number of contributors;
  ///  - broadcast: the root's rank in the job;
  ///  - exchange_v, all_gather_v, send_receive: code_of() for the data expected from the peer;
  ///  - all others: 0.
  int32_t ranks = 0;
  Collective collective = Collective::barrier;
  Traffic purpose = Traffic::other;
  DType dtype = DType::u8;
  uint8_t unused = 0;  // sent with the other members, so it must be initialised

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

/// Returns a code for a number of bytes and a dtype. The receiver of data sends the code of what it
/// expects, so that the sender notices if it is about to send something else. (Rarely, different
/// numbers and dtypes have equal codes. Then only the receiver notices the difference.)
int32_t code_of(int64_t bytes, DType dtype);

/// To be called if the header of `peer`, a rank of the channel, differs from the expected header.
/// Throws an error that names the calls of this rank and of `peer`. If both ranks make the same
/// exchange_v, all_gather_v or send_receive, and disagree only on the length or dtype of the data
/// that one sends to the other, the error instead names this call and says what is sent. If this
/// rank is the receiver, the error also says what is expected. The sender cannot say this, because
/// it has only a code of what the receiver expects.
[[noreturn]] void fail_disagreeing(const Channel& channel, const CallHeaders& headers, int peer);

}  // namespace tessera::dist
