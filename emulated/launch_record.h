// Counts what a process launches on emulated devices, for tables of launches by operation. With
// TESSERA_EMULATED_LAUNCHES=FILE, the process writes a line "count<tab>name" for each kernel and
// call of the runtime when it ends.
#pragma once

namespace emulated {

/// Counts a launch of a kernel, under its name in C++.
void record_kernel(const void* kernel);
/// Counts a call that the device executes, such as "cudaMemsetAsync".
void record_call(const char* name);

}  // namespace emulated
