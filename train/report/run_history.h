// Reads the log of a run into the data that a report draws.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace tessera::train {

/// Reads a log into one object, for the report's page:
///
///   header        the settings without the layout; settings in `resume` lines replace the header's
///   layout        the owners of all parameters, as logged last
///   steps         {count, series: {name: [[step, value], ...]}, medians: {name: value}}; there are
///                 medians of step_ms and of the speeds
///   skipped       [step, ...]: the steps without an update
///   evals         {name: [[step, value], ...]}
///   best          the step of the best evaluation
///   norms         {steps, names, values[step][name]}
///   resumes, saves, checkpoints              [step, ...]
///   summary, timeline, confusion, mistakes   the log's last line of this type
///
/// Long series are thinned (thinned_series.h). Throws InputError as read_log does. Also throws
/// InputError if the log has no step, or if its steps do not increase, as in a file of two logs.
nlohmann::ordered_json read_history(const std::string& log);

}  // namespace tessera::train
