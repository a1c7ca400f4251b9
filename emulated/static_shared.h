// Reads the names of kernels, and their static shared memory (the bytes of the __shared__ variables
// that they declare), from the program's symbol table.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace emulated {

/// Returns the bytes of the __shared__ variables that a kernel declares. Variables of the device
/// functions that the kernel calls are not counted. Returns nullopt if the program's symbol table
/// does not have the kernel, for example because the program was stripped.
std::optional<size_t> static_shared_bytes(const void* kernel);

/// Returns the mangled name of a kernel, or an empty string if the symbol table does not have it.
std::string symbol_of(const void* kernel);

}  // namespace emulated
