// The layers of a decoder in plain float64 loops. They are references for layers and models. In
// shapes, R is rows, B batch, T tokens, C width, and H heads.
#pragma once

#include <map>
#include <numbers>
#include <string>

#include "core/check_gradient.h"
#include "nn/module.h"
#include "tests/support/reference.h"

namespace tessera::test {

using NamedValues = std::map<std::string, Values>;

inline NamedValues parameter_values(const nn::Module& module) {
  NamedValues values;
  for (const auto& named : module.named_parameters()) {
    values[named.name] = values_of(named.parameter);
  }
  return values;
}

/// Sets all parameters to random values. With the initial values, such as a bias of 0 or a norm
/// weight of 1, a test would not notice a layer that ignores a parameter.
inline void randomize(const nn::Module& module, uint64_t seed, float bound = 0.5f) {
  for (const auto& named : module.named_parameters()) {
    const Tensor values = random_tensor(named.parameter.shape(), seed++, -bound, bound);
    std::copy_n(values.data<float>(), values.elements(), named.parameter.tensor().data<float>());
  }
}

/// Returns x (R, in) times w, plus b. w is (in, out), or (out, in) if `out_in` is true. b may be
/// empty.
inline Values linear_reference(const Values& x, const Values& w, const Values& b, int64_t in,
                               bool out_in = false) {
  const auto rows = static_cast<int64_t>(x.size()) / in;
  const auto out = static_cast<int64_t>(w.size()) / in;
  Values y = product(x, w, rows, out, in, false, out_in);
  for (size_t i = 0; i < y.size() && !b.empty(); ++i) y[i] += b[i % b.size()];
  return y;
}

inline Values layer_norm_reference(const Values& x, const Values& w, const Values& b,
                                   double epsilon = 1e-5) {
  Values y(x.size());
  const size_t width = w.size();
  for (size_t row = 0; row < x.size(); row += width) {
    double mean = 0;
    double variance = 0;
    for (size_t i = 0; i < width; ++i) mean += x[row + i] / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) {
      variance += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(width);
    }
    for (size_t i = 0; i < width; ++i) {
      y[row + i] = (x[row + i] - mean) / std::sqrt(variance + epsilon) * w[i] + b[i];
    }
  }
  return y;
}

inline Values gelu_reference(Values x) {
  for (double& v : x) {
    v = 0.5 * v * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
  }
  return x;
}

struct AttentionSizes {
  int64_t batch, tokens, width, heads;
};

/// Returns causal attention: qkv (B, T, 3C) -> (B, T, C).
inline Values attention_reference(const Values& qkv, const AttentionSizes& s) {
  const int64_t head = s.width / s.heads;
  Values y(static_cast<size_t>(s.batch * s.tokens * s.width), 0.0);
  const auto at = [&](int64_t b, int64_t t, int64_t part, int64_t h, int64_t d) {
    return qkv[static_cast<size_t>(((b * s.tokens + t) * 3 + part) * s.width + h * head + d)];
  };
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t t = 0; t < s.tokens; ++t) {
        Values weights;
        double sum = 0;
        for (int64_t k = 0; k <= t; ++k) {
          double score = 0;
          for (int64_t d = 0; d < head; ++d) score += at(b, t, 0, h, d) * at(b, k, 1, h, d);
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(head))));
          sum += weights.back();
        }
        for (int64_t k = 0; k <= t; ++k) {
          for (int64_t d = 0; d < head; ++d) {
            y[static_cast<size_t>((b * s.tokens + t) * s.width + h * head + d)] +=
                weights[static_cast<size_t>(k)] / sum * at(b, k, 2, h, d);
          }
        }
      }
    }
  }
  return y;
}

inline Values sum_reference(Values a, const Values& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// Returns the output of a pre-norm block. The block's parameters are called
/// prefix + "ln_1.weight" and so on.
inline Values block_reference(const Values& x, const NamedValues& p, const std::string& prefix,
                              const AttentionSizes& s) {
  const auto get = [&](const std::string& name) { return p.at(prefix + name); };
  const auto linear = [&](const Values& in, const std::string& name, int64_t width) {
    return linear_reference(in, get(name + ".weight"), get(name + ".bias"), width);
  };
  const auto norm = [&](const Values& in, const std::string& name) {
    return layer_norm_reference(in, get(name + ".weight"), get(name + ".bias"));
  };
  const Values qkv = linear(norm(x, "ln_1"), "attn.c_attn", s.width);
  const Values attended = linear(attention_reference(qkv, s), "attn.c_proj", s.width);
  const Values y = sum_reference(x, attended);
  const Values hidden = gelu_reference(linear(norm(y, "ln_2"), "mlp.c_fc", s.width));
  return sum_reference(y, linear(hidden, "mlp.c_proj", 4 * s.width));
}

/// Runs check_gradient. The inputs are x and every parameter of a materialised module.
inline GradientCheck check_module_gradient(const nn::Module& module, const Tensor& x,
                                           const std::function<Tensor(const Tensor&)>& forward,
                                           GradientCheckOptions options = {}) {
  std::vector<Tensor> inputs{x};
  std::vector<Tensor> parameters;
  std::vector<std::shared_ptr<Leaf>> leaves;
  for (const auto& named : module.named_parameters()) {
    parameters.push_back(named.parameter);
    leaves.push_back(parameters.back().leaf());
    inputs.push_back(parameters.back());
  }
  const auto result = check_gradient(
      [&](const std::vector<Tensor>& in) {
        // check_gradient reads the gradients from the leaves of `in`, so the parameters get these
        // leaves. check_gradient also changes elements of `in`. The module sees these changes only
        // if `in` shares memory with the parameters. So options.dtype must be f32, because with a
        // 16-bit dtype `in` has copies.
        for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_leaf(in[i + 1].leaf());
        return forward(in[0]);
      },
      inputs, options);
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].set_leaf(leaves[i]);
  return result;
}

}  // namespace tessera::test
