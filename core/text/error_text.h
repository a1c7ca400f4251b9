// The text of an exception, for people to read.
#pragma once

#include <exception>
#include <new>
#include <string>

namespace tessera {

/// Returns error.what(), or "out of host memory" for std::bad_alloc, whose what() is a type's name.
inline std::string error_text(const std::exception& error) {
  const bool out_of_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  return out_of_memory ? "out of host memory" : error.what();
}

}  // namespace tessera
