// cross_entropy: loss [] = mean over rows r of logsumexp(logits[r]) - logits[r][targets[r]],
// logits (R, V), targets (R).
//
// With the maximum of a row and log_sum = log(sum(exp(logits - maximum))), its loss is
//   (maximum - logits[target]) + log_sum.
// The forward keeps both numbers (R, 2), so that the backward is one pass:
//   dlogits = (exp((logits - maximum) - log_sum) - onehot(targets)) * dloss / R.
// Their sum, logsumexp, is never formed: rounding it to f32 would lose the digits of log_sum if the
// logits are large.
#include <cmath>
#include <limits>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/cross_entropy_rows.h"
#include "core/ops/sum.h"
#include "core/trace.h"

namespace tessera::ops {

void check_cross_entropy(const Tensor& logits, const Tensor& targets) {
  TESSERA_CHECK(logits.rank() >= 1, "cross_entropy: logits have shape {}, expected [..., V]",
                logits.shape());
  const Shape rows(std::span(logits.shape().begin(), logits.shape().end() - 1));
  TESSERA_CHECK(targets.shape() == rows, "cross_entropy: targets have shape {}, expected {}",
                targets.shape(), rows);
  TESSERA_CHECK(targets.dtype() == DType::i32, "cross_entropy: targets have dtype {}, expected i32",
                dtype_name(targets.dtype()));
  TESSERA_CHECK(targets.elements() > 0,
                "cross_entropy: targets have shape {}, expected at least one row", targets.shape());
  TESSERA_CHECK(logits.size(-1) > 0,
                "cross_entropy: logits have shape {}, expected at least one column",
                logits.shape());
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets) {
  check_cross_entropy(logits, targets);
  const trace::Scope scope("cross_entropy");
  const InUse in_use({&logits, &targets});
  const Context context = current_context(logits.device());
  kernels::check_targets(context, "cross_entropy", targets, logits.size(-1));
  const float share = 1.0f / static_cast<float>(targets.elements());
  Tensor normalizers = Tensor::empty({targets.elements(), 2}, DType::f32, logits.device());
  const Tensor losses = context.workspace(targets.shape());
  Tensor loss = Tensor::empty({}, DType::f32, logits.device());
  kernels::cross_entropy_forward(context, losses, normalizers, logits, targets, logits.size(-1));
  kernels::sum(context, loss, losses, share);

  return record("cross_entropy", loss, {logits},
                [logits = saved(logits), targets = saved(targets), normalizers, share](
                    const Tensor& dloss, InputGradients& grads) {
                  const InUse in_backward({&logits});
                  // The gradient overwrites the logits, unless another tensor shares their memory
                  // or they are a parameter.
                  const bool in_place = logits.unique() && !logits.leaf();
                  const Tensor dlogits = in_place ? logits : grads.destination(0);
                  kernels::cross_entropy_backward(current_context(dloss.device()), dlogits, dloss,
                                                  logits, normalizers, targets, logits.size(-1),
                                                  share);
                  if (in_place) grads.pass(0, dlogits);
                });
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {
template <class T>
Normalizer row_normalizer(const T* x, int64_t columns) {
  float maximum = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : maximum)
  for (int64_t i = 0; i < columns; ++i) maximum = float(x[i]) > maximum ? float(x[i]) : maximum;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < columns; ++i) sum += exp_f32(float(x[i]) - maximum);
  return {.maximum = maximum, .log_sum = std::log(sum)};
}

/// Returns the loss of a row. `hit` is the logit of its target.
float row_loss(const Normalizer& normalizer, float hit) {
  return (normalizer.maximum - hit) + normalizer.log_sum;
}
}  // namespace

void check_targets(const Context&, std::string_view operation, const Tensor& targets,
                   int64_t vocabulary) {
  const auto values = targets.values<int32_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    TESSERA_CHECK(values[i] >= 0 && values[i] < vocabulary,
                  "{}: target {} at position {} is outside the vocabulary of {}", operation,
                  values[i], i, vocabulary);
  }
}

void cross_entropy_forward(const Context&, const Tensor& losses, const Tensor& normalizers,
                           const Tensor& logits, const Tensor& targets, int64_t vocabulary) {
  const int64_t stride = logits.size(-1);
  visit_float(logits.dtype(), "cross_entropy", [&]<class T>() {
    float* loss = losses.data<float>();
    float* kept = normalizers.data<float>();
    const T* x = logits.data<T>();
    const int32_t* target = targets.data<int32_t>();
    parallel_ranges(targets.elements(), 16 * vocabulary, [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* in = x + row * stride;
        const Normalizer normalizer = row_normalizer(in, vocabulary);
        kept[2 * row] = normalizer.maximum;
        kept[2 * row + 1] = normalizer.log_sum;
        loss[row] = row_loss(normalizer, float(in[target[row]]));
      }
    });
  });
}

void cross_entropy_in_place(const Context&, const Tensor& losses, const Tensor& logits,
                            const Tensor& targets, int64_t vocabulary, float scale) {
  const int64_t stride = logits.size(-1);
  visit_float(logits.dtype(), "cross_entropy", [&]<class T>() {
    float* loss = losses.data<float>();
    T* x = logits.data<T>();
    const int32_t* target = targets.data<int32_t>();
    parallel_ranges(targets.elements(), 32 * vocabulary, [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* values = x + row * stride;
        const Normalizer normalizer = row_normalizer(values, vocabulary);
        loss[row] = row_loss(normalizer, float(values[target[row]]));
        cross_entropy_row_gradient(values, values, vocabulary, target[row], normalizer, scale);
      }
    });
  });
}

void cross_entropy_backward(const Context&, const Tensor& dlogits, const Tensor& dloss,
                            const Tensor& logits, const Tensor& normalizers, const Tensor& targets,
                            int64_t vocabulary, float scale) {
  const int64_t stride = logits.size(-1);
  const float* kept = normalizers.data<float>();
  const int32_t* target = targets.data<int32_t>();
  const float factor = *dloss.data<float>() * scale;
  visit_float(logits.dtype(), "cross_entropy", [&]<class T>() {
    visit_float(dlogits.dtype(), "cross_entropy", [&]<class D>() {
      D* out = dlogits.data<D>();
      const T* x = logits.data<T>();
      parallel_ranges(targets.elements(), 16 * vocabulary, [=](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          cross_entropy_row_gradient(out + row * stride, x + row * stride, vocabulary, target[row],
                                     {kept[2 * row], kept[2 * row + 1]}, factor);
        }
      });
    });
  });
}

}  // namespace tessera::cpu
