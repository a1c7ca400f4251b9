// Declares a launcher, the function that starts a kernel, once for both devices. Calls are
// dispatched in one place, by the context's device.
//
//   TESSERA_KERNEL(scale, const Tensor& y, const Tensor& x, float factor)   // in the header
//   kernels::scale(context, y, x, 2.0f);                                    // where it is called
//
// `cpu::name` is in a .cpp file and `cuda::name` in a .cu file, in the folder of the header and
// named like the header or the launcher. A launcher overwrites its destinations (first arguments)
// unless its comment says otherwise.
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
