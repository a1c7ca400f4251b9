// The style and the scripts of the report's page, in the order in which the page runs them. The
// build makes page_parts.cpp from the files in train/report/page/ (cmake/report_page.cmake).
#pragma once

#include <array>
#include <string_view>

namespace tessera::train {

extern const std::string_view page_style;
extern const std::array<std::string_view, 7> page_scripts;

}  // namespace tessera::train
