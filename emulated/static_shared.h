// Reads the names of kernels and the sizes of their static shared memory from the program's symbol
// table. A kernel's static shared memory consists of the __shared__ variables that it declares.
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
