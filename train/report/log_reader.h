// Reads the log of a run line by line, for reports and CSV tables. The run may still be writing its
// log, so the last line may be incomplete.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace tessera::train {

/// Parses a line of a log. Returns a discarded value (is_discarded) if the line is not JSON, or if
/// it is nested deeper than any line of a log. The library copies and prints nested values by
/// recursion, so deep nesting could overflow the stack.
nlohmann::ordered_json parse_log_line(const std::string& line);

/// True if a file begins as the header of a log does, even if a line after it is damaged. False if
/// the path is not a regular file that can be read.
bool is_log(const std::string& path);

/// Calls `visit` with each line of the log, in order. A last line without a newline is left out.
/// Throws InputError
///  - if the file cannot be opened or is not a regular file, or if its first line is not a header,
///  - if a line is not a JSON object with a member "type" that is a string,
///  - if a loss, gradient norm or learning rate of a step or evaluation is
///    neither a number nor null, or if its step does not fit into int64,
///  - if a step is not later than the step before it, as where two logs were joined,
///  - if `visit` throws an nlohmann::json::exception.
/// Messages about a line have its number or its step. Throws Error if the machine is
/// the reason why the file cannot be opened (fail_to_open), or if reading the opened file fails.
void read_log(const std::string& path,
              const std::function<void(const nlohmann::ordered_json&)>& visit);

}  // namespace tessera::train
