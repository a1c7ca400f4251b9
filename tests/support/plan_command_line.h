// Parses arguments as zero_plan parses its command line.
#pragma once

#include <vector>

#include "apps/zero_plan_options.h"

namespace tessera::test {

inline apps::PlanOptions parse_plan(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "zero_plan");
  return apps::parse_plan_command_line(static_cast<int>(arguments.size()), arguments.data())
      .options;
}

}  // namespace tessera::test
