#include "train/non_finite.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "core/autograd.h"

namespace tessera::train {
namespace {

enum class Values : uint8_t { finite, infinite, nan };

Values values_of(const Tensor& x) {
  if (!x.defined() || !x.allocated() || !is_float(x.dtype())) return Values::finite;
  Values result = Values::finite;
  visit_float(x.dtype(), "first_non_finite", [&]<class T>() {
    const Tensor here = x.to_host();
    for (const T value : here.values<T>()) {
      if (std::isnan(float(value))) result = Values::nan;
      if (result == Values::nan) return;
      if (std::isinf(float(value))) result = Values::infinite;
    }
  });
  return result;
}

// Returns the operation and the first parameter among its inputs, as in "linear with
// h.3.mlp.c_fc.weight". Without parameters, the text is only the operation.
std::string describe(const char* operation, std::span<const Tensor> inputs) {
  for (const Tensor& input : inputs) {
    if (!input.defined() || !input.leaf()) continue;
    return std::string(operation) + " with " + input.leaf()->name;
  }
  return operation;
}

// Finds the origin of values that are not finite. Infinities may be intended: softmax turns the
// -inf of a mask into 0. So the search goes on after an infinity, and ends at the first NaN. If the
// NaN was computed from infinities, the origin of these infinities is the answer.
class Search {
 public:
  void observe(const char* operation, const Tensor& output, std::span<const Tensor> inputs) {
    if (!nan_.empty()) return;
    const Values values = values_of(output);
    if (values == Values::finite) return;
    const Origin origin = origin_of(operation, output, values, inputs);
    if (values == Values::nan) {
      nan_ = origin.text;
      return;
    }
    infinities_.emplace(output.storage(), origin);
    if (first_.text.empty() || (first_.in_data && !origin.in_data)) first_ = origin;
  }
  /// Empty if all outputs were finite.
  std::string result() const { return nan_.empty() ? first_.text : nan_; }

 private:
  struct Origin {
    std::string text;
    bool in_data = false;  // true: in a tensor that no operation computed
  };

  Origin origin_of(const char* operation, const Tensor& output, Values values,
                   std::span<const Tensor> inputs) const {
    // Some operations, such as reshape, return a view of an input. If infinities of this input were
    // found before, their origin is known.
    if (const auto known = infinities_.find(output.storage()); known != infinities_.end()) {
      return known->second;
    }
    const Origin own{describe(operation, inputs)};
    Origin data;
    for (const Tensor& input : inputs) {
      if (values_of(input) == Values::finite) continue;
      if (input.leaf()) {
        return {std::string(operation) + " with " + input.leaf()->name +
                ", which is not finite itself"};
      }
      // The search ends at the first NaN, so a NaN in an input was not computed by an operation.
      const auto known = infinities_.find(input.storage());
      if (known == infinities_.end()) {
        data = {"the data: an input of " + own.text + " that no operation computed is not finite",
                true};
      } else if (!known->second.in_data) {
        return known->second;
      } else if (data.text.empty()) {
        data = known->second;
        if (values == Values::nan) data = {own.text + ", from infinities in the data"};
      }
    }
    return data.text.empty() ? own : data;
  }

  std::string nan_;
  // The origin of the first infinity that does not come from the data. If there is none, the origin
  // of the first infinity in the data.
  Origin first_;
  // Maps a storage to the origin of its infinities. A weak pointer does not keep the memory alive.
  // std::owner_less distinguishes two storages that had the same address one after the other.
  std::map<std::weak_ptr<Storage>, Origin, std::owner_less<>> infinities_;
};

struct Observation {
  explicit Observation(OutputObserver observer) { observe_outputs(std::move(observer)); }
  ~Observation() { observe_outputs(nullptr); }
};

}  // namespace

std::string first_non_finite(const std::function<void()>& forward) {
  Search search;
  NoGrad no_grad;
  Observation observation(
      [&](const char* operation, const Tensor& output, std::span<const Tensor> inputs) {
        search.observe(operation, output, inputs);
      });
  forward();
  const std::string place = search.result();
  return place.empty() ? "none of the operations when they were run again" : place;
}

}  // namespace tessera::train
