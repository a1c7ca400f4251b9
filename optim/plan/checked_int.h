// An int64 whose arithmetic throws TooLargeError on overflow. Plans use it, because a user may
// enter any size.
#pragma once

#include <cstdint>

#include "core/error.h"

namespace tessera::optim {

/// Thrown if a number exceeds int64. This error has its own class, so that a search for the largest
/// model can catch it: the model is then too large. The search does not catch other errors.
class TooLargeError : public InputError {
 public:
  using InputError::InputError;
};

class CheckedInt {
 public:
  constexpr CheckedInt(int64_t value = 0) : value_(value) {}  // NOLINT: converts implicitly
  constexpr int64_t value() const { return value_; }

  friend CheckedInt operator+(CheckedInt a, CheckedInt b) {
    int64_t sum = 0;
    return __builtin_add_overflow(a.value_, b.value_, &sum) ? too_large() : sum;
  }
  friend CheckedInt operator-(CheckedInt a, CheckedInt b) {
    int64_t difference = 0;
    return __builtin_sub_overflow(a.value_, b.value_, &difference) ? too_large() : difference;
  }
  friend CheckedInt operator*(CheckedInt a, CheckedInt b) {
    int64_t product = 0;
    return __builtin_mul_overflow(a.value_, b.value_, &product) ? too_large() : product;
  }
  CheckedInt& operator+=(CheckedInt other) { return *this = *this + other; }

 private:
  [[noreturn]] static int64_t too_large() {
    throw TooLargeError(
        "plan: a number of bytes is beyond 2^63; the model, the ranks or the batch are too large "
        "to count");
  }

  int64_t value_;
};

}  // namespace tessera::optim
