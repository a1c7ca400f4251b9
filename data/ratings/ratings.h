// Ratings, or interactions, as arrays of equal length, except that `times` and `time_rests`
// may be empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::data {

struct Ratings {
  std::vector<int32_t> users;  // dense numbers from 0
  std::vector<int32_t> items;
  std::vector<float> values;
  std::vector<double> times;  // in the file's unit, often seconds; empty if the file has none
  // Rounding errors of `times`: a double cannot hold every time in nanoseconds since 1970. If the
  // file writes the time of rating i as an integer, without point or exponent, this integer is
  // exactly times[i] + time_rests[i]. For any other time, the rest is 0. Empty if the rests of
  // all times in the file are 0.
  std::vector<int16_t> time_rests = {};

  int64_t size() const { return static_cast<int64_t>(users.size()); }
  /// True if the time of rating a is before that of rating b. Needs times.
  bool is_earlier(size_t a, size_t b) const {
    // Rounding never swaps two times, so the rests decide only between equal rounded times.
    if (times[a] != times[b] || time_rests.empty()) return times[a] < times[b];
    return time_rests[a] < time_rests[b];
  }
};

}  // namespace tessera::data
