// The error of a collective that has reached its time limit. The error names the missing ranks for
// the tools that restart jobs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace tessera::dist {

/// Thrown by a call that has reached its time limit. The limit is --comm-timeout; in
/// dist::finish(), it is a multiple of --comm-timeout.
class StalledError : public Error {
 public:
  StalledError(const std::string& text, std::vector<int> waited_for)
      : Error(text), ranks(std::move(waited_for)) {}

  std::vector<int> ranks;  // the ranks waited for; empty if not known
};

}  // namespace tessera::dist
