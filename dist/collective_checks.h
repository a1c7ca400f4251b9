// What every communicator checks of a call's arguments, on the caller's thread.
#pragma once

#include "core/tensor.h"

namespace tessera::dist {

/// `device` is that of the communicator; where it is a CPU, any host memory will do.
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
                "{}: {} elements, expected equal pieces for {} ranks", operation,
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

}  // namespace tessera::dist
