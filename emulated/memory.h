// The blocks of memory that CUDA has allocated.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

namespace emulated {

enum class Space { device, managed, pool, graph, pinned };

struct Block {
  size_t bytes;
  Space space;
  int device;
};

/// Returns the name of the call that allocates in a space.
const char* allocator_of(Space space);

/// Returns the block that contains an address, and the block's start. Returns nullopt for memory
/// that CUDA did not allocate.
std::optional<std::pair<const char*, Block>> block_around(const void* address);

}  // namespace emulated
