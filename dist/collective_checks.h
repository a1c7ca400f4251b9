// What every communicator checks of a call's arguments, on the caller's thread.
#pragma once

#include "core/tensor.h"

namespace tessera::dist {

inline void check_host_memory(const char* operation, const Tensor& tensor) {
  TESSERA_CHECK(tensor.allocated() || tensor.elements() == 0, "{}: a tensor without memory",
                operation);
  TESSERA_CHECK(!tensor.allocated() || tensor.device().is_cpu(),
                "{}: a tensor on {}, expected one in host memory", operation,
                tensor.device().to_string());
}

inline void check_pieces(const char* operation, const Tensor& tensor, int ranks) {
  check_host_memory(operation, tensor);
  TESSERA_CHECK(tensor.elements() % ranks == 0,
                "{}: {} elements, expected equal pieces for {} ranks", operation,
                tensor.elements(), ranks);
}

inline void check_contributors(const char* operation, int contributors, int ranks) {
  TESSERA_CHECK(contributors >= 1 && contributors <= ranks,
                "{}: {} contributors, expected 1 to {}", operation, contributors, ranks);
}

inline void check_exchange(const Tensor& input, int contributors, int ranks) {
  check_pieces("exchange", input, ranks);
  check_contributors("exchange", contributors, ranks);
}

inline void check_reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                                 int ranks) {
  check_pieces("reduce_scatter", input, ranks);
  check_host_memory("reduce_scatter", shard);
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

inline void check_all_gather(const Tensor& buffer, int ranks) {
  check_pieces("all_gather", buffer, ranks);
}

inline void check_all_reduce(const Tensor& buffer) {
  check_host_memory("all_reduce", buffer);
  TESSERA_CHECK(buffer.dtype() == DType::f32 || buffer.dtype() == DType::i64,
                "all_reduce: dtype {}, expected f32 or i64", dtype_name(buffer.dtype()));
}

inline void check_broadcast(const Tensor& buffer, int root, int ranks) {
  check_host_memory("broadcast", buffer);
  TESSERA_CHECK(root >= 0 && root < ranks, "broadcast: root {}, expected 0 to {}", root,
                ranks - 1);
}

}  // namespace tessera::dist
