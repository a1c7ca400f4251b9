// Compares the student's gradient sums with those of Tessera's own optimizer, which runs on one
// rank.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "course/lib/inspector.h"
#include "course/lib/reference.h"

namespace course {

/// The gradient of each parameter, summed over the micro-batches of a step.
using Gradients = std::map<std::string, std::vector<float>>;

/// Returns the gradients of step `step`, counted from 0.
Gradients reference_gradients(const Training& training, int64_t step = 0);

/// The result of comparing, element by element, the gradient sums in this rank's shards with the
/// reference.
struct SumReport {
  std::vector<std::string> wrong;  // parameters that have a differing element
  // Over all elements of these shards. If all expected values are 0, ratio is 1 and distance is 0.
  double ratio = 0;     // (sum of |found|) / (sum of |expected|)
  double distance = 0;  // (sum of |found - expected|) / (sum of |expected|)
};
SumReport compare_sums(DataParallel& trainer, const Gradients& expected, int rank);

}  // namespace course
