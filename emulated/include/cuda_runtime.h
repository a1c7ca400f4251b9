// CUDA's execution model and runtime on the CPU, for builds without a GPU: this folder comes first
// on the include path, .cu files are compiled as host C++, and the calls have the real signatures.
//
// A launch runs its blocks one after another on the calling OS thread. Each CUDA thread runs until
// it meets a barrier or ends; then the next thread runs. A result that depends on the order of
// threads between two barriers is an error of the kernel, which other orders reveal
// (emulated/control.h: set_order_seed, or the environment variable TESSERA_EMULATED_ORDER=<seed>).
// These errors are found in every order:
//   - barriers and warp operations that some of their threads never reach, or reach elsewhere: the
//     launch returns cudaErrorLaunchFailure, and cudaGetErrorString says which threads wait where;
//   - launches, copies, sets and frees that the runtime would refuse, and some that it would not
//     (emulated/runtime_api.h), also explained by cudaGetErrorString;
//   - with the address sanitizer, accesses beyond an allocation or beyond the dynamic shared
//     memory; with the undefined behaviour sanitizer, indices beyond a static shared array.
// Calls on a captured stream (by one thread: cudaStreamCaptureModeThreadLocal) are checked at once,
// and their work is done by the graph's launches, one after another in the order of the calls.
// Calls that CUDA forbids while capturing return CUDA's error; each allocation in a capture is a
// block of its own. Fresh memory and dynamic shared memory are filled with 0xFF bytes, which are
// NaN in every floating-point type.
//
// Not covered:
//   - PTX, tensor cores' own rounding and order of addition, cp.async and TMA, clusters, CUB,
//     cooperative groups: what Tessera needs of these is behind core/cuda/*.cuh, which has emulated
//     twins in this folder;
//   - a GPU's rounding: expf, tanhf and others are the host's, and so is the contraction of a
//     multiplication and an addition into an fma;
//   - concurrency: kernels, copies and host functions are done when their call returns, so a
//     missing event or synchronisation is not noticed; threads do not interleave between barriers,
//     so a thread that spins until another one writes hangs; blocks do not overlap;
//   - memory the other side cannot reach: host code that reads device memory, and a kernel that
//     reads the host's, go unnoticed; so do misaligned vector accesses without the undefined
//     behaviour sanitizer;
//   - static shared memory starts with what the block before left there, and its limit of 48 KiB,
//     like registers and __launch_bounds__, is known to nvcc only;
//   - threads that end before others reach a barrier: a GPU allows it, here it is an error;
//   - graphs that are built, updated or cloned by calls, graphs within graphs, memory that one
//     graph allocates and another one frees, the physical memory that graphs share, and a capture
//     that work on the null stream breaks; a graph takes cudaHostRegister's memory for pageable;
//   - sticky errors: after a failed launch the next one runs as if nothing had happened.
#pragma once

#include "emulated/kernel_language.h"
#include "emulated/runtime_api.h"
