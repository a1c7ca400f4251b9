// Reads the log of a run line by line, for reports and tables. A log may be that of a run that
// still goes on, so its last line may be cut short.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace tessera::train {

/// Calls `visit` with each line of the log, in order. A last line without a newline is left out.
/// Throws InputError if the file cannot be read, if it is not a log (its first line is no header),
/// or, with the number of the line, if a line is not a JSON object with a "type".
void read_log(const std::string& path,
              const std::function<void(const nlohmann::ordered_json&)>& visit);

}  // namespace tessera::train
