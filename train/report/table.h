// A table of text. Each column is as wide as its widest cell. Cells are aligned to the right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::train {

class Table {
 public:
  explicit Table(std::vector<std::string> heading) : rows_{std::move(heading)} {}
  /// Adds a row, which must have as many cells as the heading.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tessera::train
