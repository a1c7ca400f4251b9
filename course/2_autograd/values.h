// For the check of lesson 2: compares values, and recognizes typical mistakes.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/tensor.h"

namespace course {

using namespace tessera;

using Values = std::vector<float>;

inline Values values_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  const auto values = tensor.values<float>();
  return {values.begin(), values.end()};
}

/// The values that a typical mistake gives, and a text that explains the mistake.
struct Mistake {
  std::string text;
  Values values;
};

inline Values scaled(Values values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

// Returns true if the values are equal except for rounding. wrong_values() compares a student's
// values with the values of a Mistake in this way, because the student's program may round
// differently.
inline bool nearly_equal(const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= 1e-5f * (1 + std::abs(b[i])))) return false;
  }
  return true;
}

// Compares the found values of a matrix with the expected ones. A vector counts as a matrix of one
// row. Returns a message if the values differ. If a mistake gives the found values, the message
// includes the text of this mistake.
inline std::string wrong_values(const std::string& name, const Values& found,
                                const Values& expected, int64_t columns,
                                const std::vector<Mistake>& mistakes = {}) {
  if (found == expected) return "";
  if (found.empty()) return fmt::format("there is no {}", name);
  if (found.size() != expected.size()) {
    return fmt::format("{} has {} elements, expected {}", name, found.size(), expected.size());
  }
  size_t i = 0;
  while (found[i] == expected[i]) ++i;
  std::string text =
      fmt::format("{}, element ({}, {}): {}, expected {}", name, static_cast<int64_t>(i) / columns,
                  static_cast<int64_t>(i) % columns, found[i], expected[i]);
  for (const Mistake& mistake : mistakes) {
    if (nearly_equal(found, mistake.values)) return text + "\n      " + mistake.text;
  }
  if (std::isnan(found[i])) {
    text +=
        "\n      The memory had NaN before, and this element still has it: is every element "
        "overwritten, and nothing added to what was there?";
  }
  return text;
}

inline Values transposed(const Values& values, int64_t rows, int64_t columns) {
  Values result(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return result;
}

}  // namespace course
