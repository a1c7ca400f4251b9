// Shared by the files that call oneDNN (versions 2 and 3). Other files include core/cpu/onednn.h or
// core/cpu/onednn_conv.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include <dnnl.hpp>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <omp.h>

#include "core/dtype.h"
#include "core/error.h"

namespace tessera::cpu::onednn {

/// Runs one call of oneDNN. A failure becomes an Error that contains the text of the call.
template <class Call>
auto checked(const char* text, Call&& call) {
  try {
    return call();
  } catch (const dnnl::error& error) {
    const bool missing = error.status == dnnl_unimplemented;
    fail("oneDNN: {} failed with status {}: {}{}", text, static_cast<int>(error.status),
         error.message, missing ? "; this version cannot do that on this CPU" : "");
  }
}
#define TESSERA_ONEDNN(...) checked(#__VA_ARGS__, [&] { return __VA_ARGS__; })

/// Makes the CPU engine. Without AVX-512, first sets two parameters of glibc's malloc, except those
/// that the user has set. The reason: without AVX-512, oneDNN allocates packed operands with malloc
/// in each product, even if it is given a scratchpad.
inline dnnl::engine make_engine() {
#ifdef __GLIBC__
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto avx512 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core);
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  const auto is_chosen = [&](const char* variable, const char* tunable) {
    return std::getenv(variable) != nullptr ||
           (tunables && std::strstr(tunables, tunable) != nullptr);
  };
  if ((isa & avx512) != avx512) {
    // Packed operands take up to 7.6 MiB (GPT-2's vocabulary). With glibc's first thresholds of
    // 128 KiB, free() returns larger blocks to the system, and the next product causes page faults.
    // When glibc unmaps a block, it raises its thresholds, so the page faults and the memory held
    // would depend on the order of the products. With the fixed thresholds below, packed operands
    // come from malloc's heap, and the process keeps up to 16 MiB of free memory at the heap's end.
    if (!is_chosen("MALLOC_MMAP_THRESHOLD_", "malloc.mmap_threshold")) {
      mallopt(M_MMAP_THRESHOLD, 8 << 20);
    }
    if (!is_chosen("MALLOC_TRIM_THRESHOLD_", "malloc.trim_threshold")) {
      mallopt(M_TRIM_THRESHOLD, 16 << 20);
    }
  }
#endif
  return TESSERA_ONEDNN(dnnl::engine(dnnl::engine::kind::cpu, 0));
}

inline const dnnl::engine& engine() {
  static const dnnl::engine cpu_engine = make_engine();
  return cpu_engine;
}

/// The calling thread's stream.
inline dnnl::stream& stream() {
  thread_local dnnl::stream own = TESSERA_ONEDNN(dnnl::stream(engine()));
  return own;
}

inline dnnl::memory::data_type data_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return dnnl::memory::data_type::f32;
    case DType::bf16: return dnnl::memory::data_type::bf16;
    case DType::f16: return dnnl::memory::data_type::f16;
    default: fail("oneDNN: dtype {} is not a floating-point type", dtype_name(dtype));
  }
}

/// Hashes the key of a PrimitiveCache. `Problem` must consist of 64-bit numbers only.
template <class Problem>
struct ProblemHash {
  size_t operator()(const Problem& problem) const {
    std::array<uint64_t, sizeof(Problem) / sizeof(uint64_t)> words;
    static_assert(std::has_unique_object_representations_v<Problem>);
    std::memcpy(words.data(), &problem, sizeof(Problem));
    uint64_t hash = 0;
    for (const uint64_t word : words) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

/// While the object lives, overrides the calling thread's number of OpenMP threads. oneDNN reads
/// the number both when a primitive is made and when the primitive runs.
class TeamSize {
 public:
  explicit TeamSize(int threads) : before_(omp_get_max_threads()) {
    if (before_ != threads) omp_set_num_threads(threads);
    changed_ = before_ != threads;
  }
  ~TeamSize() {
    if (changed_) omp_set_num_threads(before_);
  }
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int before_;
  bool changed_ = false;
};

}  // namespace tessera::cpu::onednn
