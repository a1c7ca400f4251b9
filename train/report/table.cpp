#include "train/report/table.h"

#include <algorithm>

#include <fmt/format.h>

namespace tessera::train {

std::string Table::text() const {
  std::vector<size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row.at(i).size());
  }
  std::string text;
  for (const auto& row : rows_) {
    for (size_t i = 0; i < widths.size(); ++i) {
      text += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", row[i], widths[i]);
    }
    text += '\n';
  }
  return text;
}

}  // namespace tessera::train
