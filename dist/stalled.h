// What a collective throws that waits in vain, so that whoever restarts a job knows for whom.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace tessera::dist {

/// A collective in which nothing has moved for --comm-timeout.
class StalledError : public Error {
 public:
  StalledError(const std::string& text, std::vector<int> waited_for)
      : Error(text), ranks(std::move(waited_for)) {}

  std::vector<int> ranks;  // for which it has waited; empty where nobody knows
};

}  // namespace tessera::dist
