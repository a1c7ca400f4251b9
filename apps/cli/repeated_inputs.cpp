#include "apps/cli/repeated_inputs.h"

#include <algorithm>
#include <string>
#include <vector>

#include <spdlog/spdlog.h>

#include "apps/console/flag_value.h"

namespace tessera::apps {

void warn_of_repeated_inputs(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  for (const std::string flag : {"--data", "--val-data", "--init"}) {
    std::vector<std::string> values;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string& argument = arguments[i];
      // The value of another flag is never equal to `flag`: Flags::parse refuses such a value.
      if (argument == flag && i + 1 < arguments.size()) values.push_back(arguments[i + 1]);
      if (argument.starts_with(flag + "=")) values.push_back(argument.substr(flag.size() + 1));
    }
    const auto differs = [&](const std::string& value) { return value != values.front(); };
    if (std::ranges::none_of(values, differs)) continue;
    spdlog::warn("{} is given {}; {} is used", flag,
                 values.size() == 2 ? "twice" : fmt::format("{} times", values.size()),
                 one_line(values.back()));
  }
}

}  // namespace tessera::apps
