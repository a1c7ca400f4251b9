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
//   - with the undefined behaviour sanitizer, indices beyond a static shared array.
//
// Captures must use cudaStreamCaptureModeThreadLocal. Calls on a captured stream are checked at
// once. Each launch of the graph then does their work, one call after another. Allocations in a
// capture do not share memory with each other. Fresh memory and dynamic shared memory are filled
// with 0xFF bytes, which are NaN in every floating-point type.
//
// Not covered:
//   - PTX, tensor cores' own rounding and order of addition, cp.async and TMA, clusters, CUB and
//     cooperative groups. Tessera wraps them in core/cuda/*.cuh; emulated twins are in this folder;
//   - a GPU's rounding: expf, tanhf and others are the host's, and the host compiler forms the
//     fmas;
//   - concurrency: calls finish their work before they return, so a missing event or
//     synchronisation is not noticed. Blocks do not overlap. Threads do not interleave between
//     barriers, so a thread that spins until another one writes hangs;
//   - host code that reads device memory, and kernels that read host memory: both go unnoticed;
//   - misaligned vector accesses, except with the undefined behaviour sanitizer;
//   - fresh static shared memory: a block finds the contents that the previous block left;
//   - limits that only nvcc checks: registers, __launch_bounds__;
//   - threads that end before others reach a barrier: a GPU allows this, here it is an error;
//   - graphs that are built, updated or cloned by calls, and graphs within graphs;
//   - memory that one graph allocates and another one frees, and physical memory that graphs share;
//   - work on the null stream, which would break a capture on a GPU;
//   - memory from cudaHostRegister in a graph: the graph treats it as pageable;
//   - sticky errors: after a failed launch the next one runs as if nothing had happened.
#pragma once

#include "emulated/kernel_language.h"
#include "emulated/runtime_api.h"
