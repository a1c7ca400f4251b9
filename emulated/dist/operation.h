// The description of a call, and the error of failed calls. Ranks exchange the descriptions of
// their calls before data moves.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace emulated::nccl {

enum class Kind : int32_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  send,
  receive,
  goodbye,  // the rank will make no more calls
};

/// One operation of a call. Ranks send operations to each other as raw bytes, because all ranks run
/// the same program and so agree on the struct's layout.
struct Operation {
  Kind kind = Kind::goodbye;
  int32_t type = -1;
  int32_t reduction = -1;
  int32_t rank = -1;  // the root of a broadcast, the peer of a send or receive
  uint64_t count = 0;

  bool operator==(const Operation&) const = default;
  bool is_transfer() const { return kind == Kind::send || kind == Kind::receive; }
};

/// Describes the operation: "ncclBroadcast of 5 ncclFloat32 from rank 1".
std::string text(const Operation& operation);
/// Lists the operations of one announcement. Describes the first four operations, and gives only
/// the number of the others.
std::string text(std::span<const Operation> operations);

/// Bytes of an element; 0 for a type that is not emulated.
size_t type_size(int32_t type);

struct Failure : std::runtime_error {
  Failure(ncclResult_t code, const std::string& why) : std::runtime_error(why), result(code) {}
  ncclResult_t result;
};

}  // namespace emulated::nccl
