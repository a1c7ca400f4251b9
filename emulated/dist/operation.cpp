#include "emulated/dist/operation.h"

#include <algorithm>

namespace emulated::nccl {

namespace {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce: return "ncclAllReduce";
    case Kind::reduce_scatter: return "ncclReduceScatter";
    case Kind::all_gather: return "ncclAllGather";
    case Kind::broadcast: return "ncclBroadcast";
    case Kind::send: return "ncclSend";
    case Kind::receive: return "ncclRecv";
    case Kind::goodbye: return "no more calls";
  }
  return "an unknown call";
}

struct Type {
  const char* name;
  size_t bytes;
};
constexpr Type types[] = {{"ncclInt8", 1},    {"ncclUint8", 1},   {"ncclInt32", 4},
                          {"ncclUint32", 4},  {"ncclInt64", 8},   {"ncclUint64", 8},
                          {"ncclFloat16", 2}, {"ncclFloat32", 4}, {"ncclFloat64", 8},
                          {"ncclBfloat16", 2}};

bool known(int32_t type) { return 0 <= type && type < static_cast<int32_t>(std::size(types)); }

const char* reduction_name(int32_t reduction) {
  constexpr const char* names[] = {"sum", "product", "maximum", "minimum", "average"};
  return 0 <= reduction && reduction < 5 ? names[reduction] : "unknown reduction";
}

}  // namespace

size_t type_size(int32_t type) { return known(type) ? types[type].bytes : 0; }

std::string text(const Operation& operation) {
  std::string result = name_of(operation.kind);
  if (operation.kind == Kind::goodbye) return result;
  result += " of " + std::to_string(operation.count) + " " +
            (known(operation.type) ? types[operation.type].name : "unknown elements");
  if (operation.reduction >= 0) {
    result += std::string(" (") + reduction_name(operation.reduction) + ")";
  }
  if (operation.rank >= 0) {
    result += (operation.kind == Kind::send ? " to rank " : " from rank ") +
              std::to_string(operation.rank);
  }
  return result;
}

std::string text(std::span<const Operation> operations) {
  constexpr size_t most = 4;
  std::string result;
  for (size_t i = 0; i < std::min(most, operations.size()); ++i) {
    result += (i == 0 ? "" : ", ") + text(operations[i]);
  }
  if (operations.size() > most) {
    result += ", and " + std::to_string(operations.size() - most) + " more";
  }
  return result;
}

}  // namespace emulated::nccl
