// Checks of a collective call's arguments. Every communicator makes these checks on the caller's
// thread.
#pragma once

#include <vector>

#include "core/tensor.h"
#include "dist/communicator.h"

namespace tessera::dist {

/// `device` is the communicator's device; if it is a CPU, any host memory is accepted.
inline void check_memory(const char* operation, const Tensor& tensor, Device device) {
  TESSERA_CHECK(tensor.allocated() || tensor.elements() == 0, "{}: a tensor without memory",
                operation);
  if (!tensor.allocated()) return;
  const bool reachable = device.is_cpu() ? tensor.device().is_cpu() : tensor.device() == device;
  TESSERA_CHECK(reachable, "{}: a tensor on {}, expected one {}", operation,
                tensor.device().to_string(),
                device.is_cpu() ? "in host memory" : "on " + device.to_string());
}

inline void check_pieces(const char* operation, const Tensor& tensor, int ranks, Device device) {
  check_memory(operation, tensor, device);
  TESSERA_CHECK(tensor.elements() % ranks == 0,
                "{}: {} elements, expected a multiple of {}, the number of ranks", operation,
                tensor.elements(), ranks);
}

inline void check_contributors(const char* operation, int contributors, int ranks) {
  TESSERA_CHECK(contributors >= 1 && contributors <= ranks,
                "{}: {} contributors, expected 1 to {}", operation, contributors, ranks);
}

inline void check_exchange(const Tensor& input, int contributors, int ranks, Device device = {}) {
  check_pieces("exchange", input, ranks, device);
  check_contributors("exchange", contributors, ranks);
}

inline void check_reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                                 int ranks, Device device = {}) {
  check_pieces("reduce_scatter", input, ranks, device);
  check_memory("reduce_scatter", shard, device);
  check_contributors("reduce_scatter", contributors, ranks);
  TESSERA_CHECK(shard.dtype() == DType::f32, "reduce_scatter: a shard of {}, expected f32",
                dtype_name(shard.dtype()));
  TESSERA_CHECK(is_float(input.dtype()),
                "reduce_scatter: an input of {}, expected f32, bf16 or f16",
                dtype_name(input.dtype()));
  TESSERA_CHECK(shard.elements() == input.elements() / ranks,
                "reduce_scatter: a shard of {} elements, expected {}", shard.elements(),
                input.elements() / ranks);
}

inline void check_all_gather(const Tensor& buffer, int ranks, Device device = {}) {
  check_pieces("all_gather", buffer, ranks, device);
}

inline void check_all_reduce(const Tensor& buffer, Device device = {}) {
  check_memory("all_reduce", buffer, device);
  TESSERA_CHECK(buffer.dtype() == DType::f32 || buffer.dtype() == DType::i64,
                "all_reduce: dtype {}, expected f32 or i64", dtype_name(buffer.dtype()));
}

inline void check_broadcast(const Tensor& buffer, int root, int ranks, Device device = {}) {
  check_memory("broadcast", buffer, device);
  TESSERA_CHECK(root >= 0 && root < ranks, "broadcast: root {}, expected 0 to {}", root,
                ranks - 1);
}

/// Throws unless `counts` has one entry >= 0 per rank and the entries sum to `buffer`'s elements.
inline void check_counts(const char* operation, const std::vector<int64_t>& counts,
                         const Tensor& buffer, int ranks) {
  TESSERA_CHECK(std::ssize(counts) == ranks, "{}: {} counts, expected one for each of {} ranks",
                operation, counts.size(), ranks);
  int64_t left = buffer.elements();
  for (size_t r = 0; r < counts.size(); ++r) {
    TESSERA_CHECK(counts[r] >= 0, "{}: {} elements for rank {}, expected at least 0", operation,
                  counts[r], r);
    // Each count is compared with the remaining elements, because a sum of counts might overflow.
    TESSERA_CHECK(counts[r] <= left,
                  "{}: a buffer of {} elements, but the counts up to rank {} add up to more",
                  operation, buffer.elements(), r);
    left -= counts[r];
  }
  TESSERA_CHECK(left == 0, "{}: a buffer of {} elements, but the counts add up to {}", operation,
                buffer.elements(), buffer.elements() - left);
}

inline void check_exchange_v(const Tensor& input, const Tensor& output,
                             const ExchangeCounts& counts, int rank, int ranks,
                             Device device = {}) {
  check_memory("exchange_v", input, device);
  check_memory("exchange_v", output, device);
  TESSERA_CHECK(input.dtype() == output.dtype(),
                "exchange_v: the input is {} and the output {}, expected the same dtype",
                dtype_name(input.dtype()), dtype_name(output.dtype()));
  check_counts("exchange_v", counts.send, input, ranks);
  check_counts("exchange_v", counts.receive, output, ranks);
  const auto own = static_cast<size_t>(rank);
  TESSERA_CHECK(counts.send[own] == counts.receive[own],
                "exchange_v: rank {} sends {} elements to itself, but expects {} from itself", rank,
                counts.send[own], counts.receive[own]);
}

inline void check_all_gather_v(const Tensor& buffer, const std::vector<int64_t>& counts, int ranks,
                               Device device = {}) {
  check_memory("all_gather_v", buffer, device);
  check_counts("all_gather_v", counts, buffer, ranks);
}

inline void check_send_receive(const Transfer& outgoing, const Transfer& incoming, int rank,
                               int ranks, Device device = {}) {
  TESSERA_CHECK(
      outgoing.peer != -1 || incoming.peer != -1,
      "send_receive: neither a peer to send to nor one to receive from, expected at least one");
  for (const Transfer* const one : {&outgoing, &incoming}) {
    if (one->peer == -1) continue;
    check_memory("send_receive", one->buffer, device);
    TESSERA_CHECK(one->peer >= 0 && one->peer < ranks, "send_receive: peer {}, expected 0 to {}",
                  one->peer, ranks - 1);
  }
  const bool alone = outgoing.peer == rank || incoming.peer == rank;
  TESSERA_CHECK(
      !alone || outgoing.peer == incoming.peer,
      "send_receive: rank {} is its own peer in only one direction, expected both or none", rank);
  TESSERA_CHECK(!alone || (outgoing.buffer.elements() == incoming.buffer.elements() &&
                           outgoing.buffer.dtype() == incoming.buffer.dtype()),
                "send_receive: rank {} sends {} elements of {} to itself, but expects {} of {}",
                rank, outgoing.buffer.elements(), dtype_name(outgoing.buffer.dtype()),
                incoming.buffer.elements(), dtype_name(incoming.buffer.dtype()));
}

inline void check_group(const std::string& group) {
  TESSERA_CHECK(!group.empty(), "split: a group without a name");
}

}  // namespace tessera::dist
