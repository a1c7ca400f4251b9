// The error handling of the emulated cuBLASLt, and the contents of preferences and algorithms,
// which are opaque to callers. emulated/cublas_lt.h has the contents of matrix layouts and product
// descriptors. All these structs begin with a mark, so that read() detects uninitialised ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include <cublasLt.h>
#include <fmt/format.h>

namespace emulated::cublas_lt {

/// The reason for the calling thread's latest failure.
extern thread_local std::string last_reason;

struct Refusal {
  cublasStatus_t status;
  std::string reason;
};

template <class... Args>
void demand(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (condition) return;
  throw Refusal{CUBLAS_STATUS_INVALID_VALUE, fmt::format(format, std::forward<Args>(args)...)};
}

/// Runs the body of a call. If the body throws a Refusal, stores its reason and returns its status.
template <class Body>
cublasStatus_t guarded(Body&& body) {
  try {
    body();
    return CUBLAS_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    last_reason = refusal.reason;
    return refusal.status;
  }
}

struct Preference {
  static constexpr uint64_t expected_mark = 0x70726566;
  uint64_t mark = expected_mark;
  uint64_t workspace_bytes = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

struct Algorithm {
  static constexpr uint64_t expected_mark = 0x616C676F;
  uint64_t mark = expected_mark;
  uint64_t problem = 0;  // a hash of the product that the algorithm was proposed for
  uint64_t workspace_bytes = 0;
  uint32_t alignment[4] = {};
  Order order;
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
};

template <class T, class Opaque>
T read(const Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque) && std::is_trivially_copyable_v<T>);
  demand(opaque != nullptr, "a descriptor is null");
  T value;
  std::memcpy(static_cast<void*>(&value), opaque, sizeof value);
  demand(value.mark == T::expected_mark, "a descriptor was not initialised");
  return value;
}

template <class T, class Opaque>
void write(Opaque* opaque, const T& value) {
  static_assert(sizeof(T) <= sizeof(Opaque) && std::is_trivially_copyable_v<T>);
  std::memcpy(opaque, &value, sizeof value);
}

}  // namespace emulated::cublas_lt
