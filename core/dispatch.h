// How a launcher is declared: once for both devices, and dispatched once, by the context's device.
//
//   TESSERA_KERNEL(scale, const Tensor& y, const Tensor& x, float factor)   // in the header
//   kernels::scale(context, y, x, 2.0f);                                    // where it is called
//
// `cpu::name` stands in a .cpp and `cuda::name` in a .cu of the header's folder, of its stem or of
// the launcher's. A launcher overwrites its destinations (first arguments) unless it says
// otherwise.
#pragma once

#include <utility>

#include "core/context.h"

namespace tessera {

#ifdef TESSERA_WITH_CUDA
#define TESSERA_DISPATCH(name, context, ...) \
  (context).device.is_cpu() ? cpu::name(context, __VA_ARGS__) : cuda::name(context, __VA_ARGS__)
#else
#define TESSERA_DISPATCH(name, context, ...) cpu::name(context, __VA_ARGS__)
#endif

// Declares cpu::name and cuda::name with the given parameters, and kernels::name, which dispatches.
#define TESSERA_KERNEL(name, ...)                                        \
  namespace cpu {                                                        \
  void name(const Context& context, __VA_ARGS__);                        \
  }                                                                      \
  namespace cuda {                                                       \
  void name(const Context& context, __VA_ARGS__);                        \
  }                                                                      \
  namespace kernels {                                                    \
  template <class... Args>                                               \
  void name(const Context& context, Args&&... args) {                    \
    TESSERA_DISPATCH(name, context, std::forward<Args>(args)...);        \
  }                                                                      \
  }

}  // namespace tessera
