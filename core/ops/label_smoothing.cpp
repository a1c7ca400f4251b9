// smoothed_cross_entropy: cross-entropy of logits (R, V) and targets (R), with target probabilities
// (1 - smoothing) onehot(target) + smoothing / V. The result is the mean of the rows' losses.
// Compared with cross_entropy, the loss of row r and the gradient of logits[r] each have one more
// term:
//   loss      smoothing * mean(logits[r][target] - logits[r])
//   gradient  smoothing * (onehot(target) - 1 / V) * dloss / R
#include "core/autograd.h"
#include "core/image_ops.h"
#include "core/ops.h"
#include "core/ops/convert.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/label_smoothing.h"
#include "core/ops/sum.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {
void check_smoothed(const Tensor& logits, const Tensor& targets, float smoothing) {
  constexpr std::string_view name = "smoothed_cross_entropy";
  TESSERA_CHECK(smoothing >= 0 && smoothing < 1, "{}: smoothing is {}, expected in [0, 1)", name,
                smoothing);
  TESSERA_CHECK(logits.rank() == 2 && logits.elements() > 0,
                "{}: logits have shape {}, expected a non-empty (R, V)", name, logits.shape());
  TESSERA_CHECK(targets.shape() == Shape{logits.size(0)}, "{}: targets have shape {}, expected {}",
                name, targets.shape(), Shape{logits.size(0)});
  TESSERA_CHECK(targets.dtype() == DType::i32, "{}: targets have dtype {}, expected i32", name,
                dtype_name(targets.dtype()));
}
}  // namespace

Tensor smoothed_cross_entropy(const Tensor& logits, const Tensor& targets, float smoothing) {
  check_smoothed(logits, targets, smoothing);
  if (smoothing == 0) return cross_entropy(logits, targets);
  const trace::Scope scope("smoothed_cross_entropy");
  const InUse in_use({&logits, &targets});
  const Context context = current_context(logits.device());
  kernels::check_targets(context, "smoothed_cross_entropy", targets, logits.size(1));
  const float share = 1.0f / static_cast<float>(targets.elements());
  Tensor normalizers = Tensor::empty({targets.elements(), 2}, DType::f32, logits.device());
  const Tensor losses = context.workspace(targets.shape());
  Tensor loss = Tensor::empty({}, DType::f32, logits.device());
  kernels::cross_entropy_forward(context, losses, normalizers, logits, targets, logits.size(1));
  kernels::label_smoothing_forward(context, losses, logits, targets, smoothing);
  kernels::sum(context, loss, losses, share);

  return record("smoothed_cross_entropy", loss, {logits},
                [logits = saved(logits), targets = saved(targets), normalizers, smoothing, share](
                    const Tensor& dloss, InputGradients& grads) {
                  const InUse in_backward({&logits});
                  const Context here = current_context(dloss.device());
                  // The gradient overwrites the logits, unless another tensor shares their memory
                  // or they are a parameter.
                  const bool in_place = logits.unique() && !logits.leaf();
                  const Tensor dlogits = in_place ? logits : grads.destination(0);
                  // For 16-bit logits the gradients of cross_entropy and of the smoothing term are
                  // summed in f32 and rounded once.
                  const Tensor sum =
                      dlogits.dtype() == DType::f32 ? dlogits : here.workspace(dlogits.shape());
                  kernels::cross_entropy_backward(here, sum, dloss, logits, normalizers, targets,
                                                  logits.size(1), share);
                  kernels::label_smoothing_backward(here, sum, dloss, targets, smoothing, share);
                  if (!sum.same(dlogits)) kernels::convert(here, dlogits, sum);
                  if (in_place) grads.pass(0, dlogits);
                });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void label_smoothing_forward(const Context&, const Tensor& losses, const Tensor& logits,
                             const Tensor& targets, float smoothing) {
  const int64_t columns = logits.size(1);
  visit_float(logits.dtype(), "smoothed_cross_entropy", [&]<class T>() {
    float* loss = losses.data<float>();
    const T* x = logits.data<T>();
    const int32_t* target = targets.data<int32_t>();
    parallel_ranges(targets.elements(), columns, [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* in = x + row * columns;
        const float hit = float(in[target[row]]);
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < columns; ++i) total += hit - float(in[i]);
        loss[row] += smoothing * (total / static_cast<float>(columns));
      }
    });
  });
}

void label_smoothing_backward(const Context&, const Tensor& dlogits, const Tensor& dloss,
                              const Tensor& targets, float smoothing, float scale) {
  const int64_t columns = dlogits.size(1);
  const float hit = smoothing * scale * *dloss.data<float>();
  const float share = hit / static_cast<float>(columns);
  float* out = dlogits.data<float>();
  const int32_t* target = targets.data<int32_t>();
  parallel_ranges(targets.elements(), columns, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* gradient = out + row * columns;
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) gradient[i] -= share;
      gradient[target[row]] += hit;
    }
  });
}

}  // namespace tessera::cpu
