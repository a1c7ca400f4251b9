// CUDA's execution model and runtime on the CPU, for builds without a GPU. In these builds, this
// folder comes first on the include path, and .cu files are compiled as host C++. The calls have
// the real signatures.
//
// A launch runs its blocks one after another on one OS thread: the calling thread or, if streams
// are deferred (emulated/deferred.h), a thread of the emulator. Each CUDA thread runs until it ends
// or reaches a barrier or warp operation; then the next thread runs. A kernel is wrong if its
// result depends on the order of threads between two barriers. To reveal such kernels, tests can
// change this order (set_order_seed in emulated/control.h).
//
// These errors are found whatever the order of the threads:
//   - threads wait at a barrier or warp operation that other threads never reach, because the other
//     threads end or wait elsewhere. The launch fails with cudaErrorLaunchFailure, and
//     cudaGetErrorString says which threads wait where;
//   - calls that the real runtime would refuse, and some that only the emulation refuses
//     (emulated/runtime_api.h). cudaGetErrorString explains the refusal;
//   - with the address sanitizer, accesses beyond an allocation or the dynamic shared memory;
//   - with the undefined behaviour sanitizer, indices beyond a static shared array;
//   - accesses of the host to device memory: they end the process (emulated/arena.h).
// Deferred streams also reveal work that lacks a needed event or synchronisation, with some seeds
// (emulated/deferred.h).
//
// Captures must use cudaStreamCaptureModeThreadLocal. Calls on a captured stream are checked at
// once. Each launch of the graph then runs the work of these calls, one call after another. Each
// allocation in a capture has its own memory, even after another allocation has been freed.
//
// Fresh memory and dynamic shared memory are filled with 0xFF bytes, which are NaN in every
// floating-point type.
//
// Blocks do not run concurrently, nor do threads between barriers. So a kernel hangs if one of its
// threads spins until another thread writes. The end of this file lists further limits.
#pragma once

#include "emulated/kernel_language.h"
#include "emulated/runtime_api.h"

// Not covered:
//   - PTX, tensor cores' own rounding and order of addition, cp.async and TMA, clusters, CUB and
//     cooperative groups. Tessera uses PTX only in core/half.h, which has host code too, and in
//     files of core/cuda that have emulated twins in this folder;
//   - a GPU's rounding: expf, tanhf and others are the host's, and the host compiler decides which
//     products and sums become an fma;
//   - kernels that read pageable host memory: such reads go unnoticed;
//   - misaligned vector accesses, except with the undefined behaviour sanitizer;
//   - fresh static shared memory: a block finds the contents that the previous block left;
//   - limits that only nvcc checks: registers, __launch_bounds__;
//   - the static shared memory of device functions. The check of a kernel's shared memory against
//     the 227 KiB of a block does not count this memory (emulated/static_shared.h);
//   - threads that end before others reach a barrier: a GPU accepts such threads, the emulation
//     reports an error;
//   - graphs that are built, updated or cloned by calls, and graphs within graphs;
//   - missing dependencies between streams within a graph: a graph always runs in the order of its
//     calls;
//   - memory that one graph allocates and another graph frees, and physical memory that graphs
//     share;
//   - memory from cudaHostRegister in a graph: the graph treats it as pageable.
