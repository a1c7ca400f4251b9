#include "train/non_finite.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "core/autograd.h"

namespace tessera::train {
namespace {

bool is_finite(const Tensor& x) {
  if (!x.defined() || !x.allocated() || !is_float(x.dtype())) return true;
  bool finite = true;
  visit_float(x.dtype(), "first_non_finite", [&]<class T>() {
    const Tensor here = x.to_host();
    const std::span<const T> values = here.values<T>();
    finite = std::all_of(values.begin(), values.end(),
                         [](T value) { return std::isfinite(float(value)); });
  });
  return finite;
}

// Returns the operation and one of the parameters among its inputs, as in "linear with
// h.3.mlp.c_fc.weight". If a parameter has non-finite values, the text names the first such
// parameter and says that it is not finite. Otherwise the text names the first parameter. Without
// parameters, the text is only the operation.
std::string describe(const char* operation, std::span<const Tensor> inputs) {
  std::string first;
  for (const Tensor& input : inputs) {
    if (!input.defined() || !input.leaf()) continue;
    const std::string& name = input.leaf()->name;
    if (!is_finite(input)) {
      return std::string(operation) + " with " + name + ", which is not finite itself";
    }
    if (first.empty()) first = name;
  }
  return first.empty() ? operation : std::string(operation) + " with " + first;
}

struct Observation {
  explicit Observation(OutputObserver observer) { observe_outputs(std::move(observer)); }
  ~Observation() { observe_outputs(nullptr); }
};

}  // namespace

std::string first_non_finite(const std::function<void()>& forward) {
  std::string place;
  NoGrad no_grad;
  Observation observation([&](const char* operation, const Tensor& output,
                              std::span<const Tensor> inputs) {
    if (place.empty() && !is_finite(output)) place = describe(operation, inputs);
  });
  forward();
  return place.empty() ? "none of the operations when they were run again" : place;
}

}  // namespace tessera::train
