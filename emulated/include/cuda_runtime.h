// CUDA's execution model and runtime on the CPU, for builds without a GPU. This folder comes first
// on the include path, .cu files are compiled as host C++, and the calls have the real signatures.
//
// A launch runs its blocks one after another on the calling OS thread. Each CUDA thread runs until
// it reaches a barrier or ends; then the next thread runs. A kernel is wrong if its result depends
// on the order of threads between two barriers. Other orders (set_order_seed in
// emulated/control.h) reveal such kernels. These errors are found in every order:
//   - threads wait at a barrier or warp operation that other threads never reach, because these end
//     or wait elsewhere. The launch returns cudaErrorLaunchFailure, and cudaGetErrorString says
//     which threads wait where;
//   - calls that the real runtime would refuse, and some that only the emulation refuses
//     (emulated/runtime_api.h). cudaGetErrorString explains the refusal;
//   - with the address sanitizer, accesses beyond an allocation or the dynamic shared memory;
//   - with the undefined behaviour sanitizer, indices beyond a static shared array;
//   - accesses of the host to device memory: they end the process (emulated/arena.h).
// Work that needs an event or a synchronisation and has none is found in some orders, if streams
// are deferred (emulated/deferred.h).
//
// Captures must use cudaStreamCaptureModeThreadLocal. Calls on a captured stream are checked at
// once. Each launch of the graph then does their work, one call after another. Allocations in a
// capture do not share memory with each other. Fresh memory and dynamic shared memory are filled
// with 0xFF bytes, which are NaN in every floating-point type.
//
// Not covered: concurrency of blocks and of threads between barriers (a thread that spins until
// another one writes hangs), and what the list at this file's end has.
#pragma once

#include "emulated/kernel_language.h"
#include "emulated/runtime_api.h"

// Not covered:
//   - PTX, tensor cores' own rounding and order of addition, cp.async and TMA, clusters, CUB and
//     cooperative groups. Tessera wraps them in core/cuda/*.cuh; emulated twins are in this folder;
//   - a GPU's rounding: expf, tanhf and others are the host's, and the host compiler forms the
//     fmas;
//   - kernels that read host memory, unless it is pinned or managed: this goes unnoticed;
//   - misaligned vector accesses, except with the undefined behaviour sanitizer;
//   - fresh static shared memory: a block finds the contents that the previous block left;
//   - limits that only nvcc checks: registers, __launch_bounds__;
//   - the static shared memory of device functions. It is missing in the sum of a kernel's shared
//     memory, which is compared with the 227 KiB that a block has (emulated/static_shared.h);
//   - threads that end before others reach a barrier: a GPU allows this, here it is an error;
//   - graphs that are built, updated or cloned by calls, and graphs within graphs;
//   - a missing order of streams within a graph, which runs in the order of its calls;
//   - memory that one graph allocates and another one frees, and physical memory that graphs share;
//   - memory from cudaHostRegister in a graph: the graph treats it as pageable.
