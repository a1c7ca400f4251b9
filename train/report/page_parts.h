// The style of the report's page, and its scripts in the order in which the page runs them. The
// build makes page_parts.cpp from the files in train/report/page/ (cmake/report_page.cmake).
#pragma once

#include <span>
#include <string_view>

namespace tessera::train {

extern const std::string_view page_style;
extern const std::span<const std::string_view> page_scripts;

}  // namespace tessera::train
