// TESSERA_KERNEL(name, ...) declares a launcher, the function that starts a kernel, for the CPU and
// for CUDA. `kernels::name` calls the launcher of the context's device.
//
//   TESSERA_KERNEL(scale, const Tensor& y, const Tensor& x, float factor)   // in the header
//   kernels::scale(context, y, x, 2.0f);                                    // where it is called
//
// A .cpp file defines `cpu::name`, and a .cu file defines `cuda::name`. Both files are in the
// header's folder, and most are named after the header or the launcher. A launcher overwrites its
// destinations (first arguments) unless its comment says otherwise.
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

// Declares cpu::name and cuda::name, and defines kernels::name, which calls one of these two.
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
