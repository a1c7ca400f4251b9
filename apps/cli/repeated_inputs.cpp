#include "apps/cli/repeated_inputs.h"

#include <algorithm>

#include <spdlog/spdlog.h>

#include "apps/console/flag_value.h"

namespace tessera::apps {

void warn_of_repeated_inputs(const Flags& flags) {
  for (const char* const flag : {"--data", "--val-data", "--init"}) {
    const std::vector<std::string> values = flags.texts_of(flag);
    const auto differs = [&](const std::string& value) { return value != values.front(); };
    if (std::ranges::none_of(values, differs)) continue;
    spdlog::warn("{} is given {}; {} is used", flag,
                 values.size() == 2 ? "twice" : fmt::format("{} times", values.size()),
                 one_line(values.back()));
  }
}

}  // namespace tessera::apps
