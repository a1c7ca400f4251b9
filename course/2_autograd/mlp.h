// For the check of lesson 2: the network of README.md.
#pragma once

#include <algorithm>
#include <functional>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/ops.h"
#include "course/2_autograd/example.h"

namespace course {

using Linear = std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>;

class Layer : public nn::Module {
 public:
  Layer(nn::Parameter its_weight, nn::Parameter its_bias)
      : weight(add("weight", its_weight)), bias(its_bias) {
    if (bias.defined()) add("bias", bias);
  }
  nn::Parameter weight, bias;
};

/// Four layers with ReLU between them. fc0 and fc3 have the same weight; fc0 has no bias.
class Mlp : public nn::Module {
 public:
  static constexpr int64_t rows = 6;

  explicit Mlp(Linear linear)
      : linear_(std::move(linear)),
        fc0_(matrix(8, 12), {}),
        fc1_(matrix(12, 10), vector(10)),
        fc2_(matrix(10, 8), vector(8)),
        fc3_(fc0_.weight, vector(12)) {
    add("fc0", fc0_);
    add("fc1", fc1_);
    add("fc2", fc2_);
    add("fc3", fc3_);
    nn::materialize(*this);
    int64_t seed = 0;
    for (const nn::NamedParameter& named : named_parameters()) {
      // Sums grow from layer to layer, and f32 sums of integers are exact only below 2^24.
      // Therefore the values are only -1, 0 and 1.
      const Tensor value = integers(named.parameter.shape(), ++seed);
      for (int64_t i = 0; i < value.elements(); ++i) {
        const auto small = static_cast<float>(static_cast<int>(value.data<float>()[i]) / 2 % 2);
        named.parameter.tensor().data<float>()[i] = small;
      }
    }
  }

  /// Returns the sum of all outputs, each multiplied by an integer. Leaves out fc3 unless `all`.
  Tensor loss(const Tensor& x, bool all = true) {
    Tensor h = ops::relu(linear_(x, fc0_.weight, fc0_.bias));
    h = ops::relu(linear_(h, fc1_.weight, fc1_.bias));
    h = ops::relu(linear_(h, fc2_.weight, fc2_.bias));
    if (all) h = linear_(h, fc3_.weight, fc3_.bias);
    return ops::sum(ops::mul(h, integers(h.shape(), 77)));
  }

 private:
  static nn::Parameter matrix(int64_t in, int64_t out) {
    return {{in, out}, nn::Initializer::zeros()};
  }
  static nn::Parameter vector(int64_t size) { return {{size}, nn::Initializer::zeros()}; }

  Linear linear_;
  Layer fc0_, fc1_, fc2_, fc3_;
};

/// The calls of the hook in one forward and backward.
struct Told {
  std::vector<std::string> names;           // in order of the calls
  std::map<std::string, Values> gradients;  // as they were when the hook was called
  int64_t in_forward = 0;                   // number of calls during the forward
};

// Runs forward and backward of a network, and records the calls of the student's on_complete hook.
class Watched {
 public:
  explicit Watched(Mlp& model) : model_(model) {
    on_complete(model, [this](const std::string& name) {
      told_.names.push_back(name);
      for (const nn::NamedParameter& named : model_.named_parameters()) {
        if (named.name == name) told_.gradients[name] = values_of(named.parameter.gradient());
      }
    });
  }
  Told run(const Tensor& x, bool all = true) {
    told_ = {};
    const Tensor loss = model_.loss(x, all);
    told_.in_forward = std::ssize(told_.names);
    backward(loss);
    return told_;
  }

 private:
  Mlp& model_;
  Told told_;
};

/// The library's linear, for a weight stored as (in, out).
inline Tensor library_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return ops::linear(x, weight, bias, {.layout = WeightLayout::in_out});
}

/// Returns a message unless the hook was called exactly once for each expected parameter, for no
/// other parameter, and only in backward.
inline std::string once_message(const Told& told, const std::vector<std::string>& expected) {
  if (told.in_forward > 0) {
    return fmt::format("the hook is called {} times in the forward, first for '{}'",
                       told.in_forward, told.names[0]);
  }
  for (const std::string& name : expected) {
    const auto times = std::ranges::count(told.names, name);
    if (times != 1) {
      return fmt::format("a backward calls the hook {} times for '{}', expected once", times, name);
    }
  }
  for (const std::string& name : told.names) {
    if (std::ranges::count(expected, name) == 0) {
      return fmt::format("the hook is called for '{}', which gets no gradient", name);
    }
  }
  return "";
}

/// Returns a message if the order of layers is not the expected one.
inline std::string order_message(const std::vector<std::string>& found,
                                 const std::vector<std::string>& expected) {
  // Only layers are compared. The order within a layer depends on the order in which the student's
  // linear() passes the inputs to record().
  const auto layer = [](const std::string& name) { return name.substr(0, name.find('.')); };
  for (size_t i = 0; i < expected.size(); ++i) {
    if (layer(found[i]) == layer(expected[i])) continue;
    return fmt::format("call number {} is for '{}', expected '{}'. Found: {}", i, found[i],
                       expected[i], fmt::join(found, ", "));
  }
  return "";
}

}  // namespace course
