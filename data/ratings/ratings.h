// Ratings, or interactions, as arrays of equal length, except that `times` may be empty.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::data {

struct Ratings {
  std::vector<int32_t> users;  // dense numbers from 0
  std::vector<int32_t> items;
  std::vector<float> values;
  std::vector<double> times;  // seconds; empty if the file has none

  int64_t size() const { return static_cast<int64_t>(users.size()); }
};

}  // namespace tessera::data
