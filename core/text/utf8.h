// Checks text that is written to JSON, which must be UTF-8.
#pragma once

#include <string_view>

namespace tessera {

bool is_utf8(std::string_view text);

}  // namespace tessera
