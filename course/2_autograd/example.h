// For the check of lesson 2: one layer with small integers, and parameters that have memory only
// while they are in use.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "course/2_autograd/linear.h"
#include "course/2_autograd/values.h"
#include "course/lib/events.h"

namespace course {

/// Returns integers from -4 to 4, so that all sums are exact in any order. The integers depend on
/// the seed.
inline Tensor integers(const Shape& shape, int64_t seed) {
  const Tensor tensor = Tensor::empty(shape);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    const int64_t mixed = (i * 2654435761 + (seed + 1) * 40503) >> 7;
    tensor.data<float>()[i] = static_cast<float>(mixed % 9 - 4);
  }
  return tensor;
}

/// A layer with its expected values and gradients. `rows`, `in` and `out` are all different, so
/// that a wrong transposition shows.
struct Example {
  explicit Example(int64_t rank)
      : x(integers({rows, in}, rank)),
        weight(integers({in, out}, rank + 10)),
        bias(integers({out}, rank + 20)),
        dy(integers({rows, out}, rank + 30)) {}

  Values y(bool with_bias = true) const {
    Values result;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < out; ++o) {
        float sum = with_bias ? bias.data<float>()[o] : 0;
        for (int64_t i = 0; i < in; ++i) sum += at(x, r, i) * at(weight, i, o);
        result.push_back(sum);
      }
    }
    return result;
  }
  Values dx() const {
    Values result;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < in; ++i) {
        float sum = 0;
        for (int64_t o = 0; o < out; ++o) sum += at(dy, r, o) * at(weight, i, o);
        result.push_back(sum);
      }
    }
    return result;
  }
  Values dx_with_wrong_layout() const {
    Example wrong = *this;
    wrong.weight = Tensor::empty({in, out});
    for (int64_t i = 0; i < in; ++i) {
      for (int64_t o = 0; o < out; ++o) {
        at(wrong.weight, i, o) = weight.data<float>()[o * in + i];
      }
    }
    return wrong.dx();
  }
  /// Returns the part of dW that comes from rows [first, end) of x and dy.
  Values dweight(int64_t first = 0, int64_t end = rows) const {
    Values result;
    for (int64_t i = 0; i < in; ++i) {
      for (int64_t o = 0; o < out; ++o) {
        float sum = 0;
        for (int64_t r = first; r < end; ++r) sum += at(x, r, i) * at(dy, r, o);
        result.push_back(sum);
      }
    }
    return result;
  }
  Values dbias(int64_t first = 0, int64_t end = rows) const {
    Values result;
    for (int64_t o = 0; o < out; ++o) {
      float sum = 0;
      for (int64_t r = first; r < end; ++r) sum += at(dy, r, o);
      result.push_back(sum);
    }
    return result;
  }

  static constexpr int64_t rows = 5, in = 3, out = 4;
  Tensor x, weight, bias, dy;
};

/// A parameter as in lesson 6: it has memory only between about_to_be_used and no_longer_used. A
/// use allocates new memory unless another use is in progress. When the last use ends, this memory
/// is filled with NaN, which views that were kept from the use then read. The memory for the
/// gradient is filled with NaN at first. The parameter adds "use" and "done" to `events`.
class Lent {
 public:
  Lent(const std::string& name, const Tensor& value, Events& events)
      : tensor(Tensor::unallocated(value.shape(), DType::f32)) {
    auto leaf = std::make_shared<Leaf>();
    leaf->name = name;
    leaf->about_to_be_used = [this, name, value, &events] {
      events.add({.kind = "use", .parameter = name});
      if (readers_++ > 0) return;
      const Tensor lent = Tensor::empty(value.shape());
      lent.copy_from(value);
      tensor.attach(lent.storage(), 0);
    };
    leaf->no_longer_used = [this, name, &events] {
      events.add({.kind = "done", .parameter = name});
      if (--readers_ > 0) return;
      std::ranges::fill(tensor.values<float>(), NAN);
      tensor.attach(nullptr, 0);
    };
    leaf->gradient_buffer = [shape = value.shape()] { return Tensor::full(shape, NAN); };
    tensor.set_leaf(std::move(leaf));
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  Values gradient() const { return values_of(tensor.leaf()->gradient); }

  Tensor tensor;

 private:
  int readers_ = 0;
};

/// Returns a parameter with memory. The memory for its gradient is filled with NaN at first.
inline Tensor parameter(const std::string& name, const Tensor& value, bool trainable = true) {
  Tensor tensor = value.detach();
  auto leaf = std::make_shared<Leaf>();
  leaf->name = name;
  leaf->trainable = trainable;
  leaf->gradient_buffer = [shape = value.shape()] { return Tensor::full(shape, NAN); };
  tensor.set_leaf(std::move(leaf));
  return tensor;
}

}  // namespace course
