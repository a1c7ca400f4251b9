// cross_entropy with class weights, an ignored target or both, for R rows. The weight w of a row is
// 0 if the row has the ignored target. Otherwise w is the class weight of the row's target, or 1
// without class weights. Then
//   loss [] = sum(w * (logsumexp(logits) - logits[target])) / sum(w).
// The backward multiplies the gradient of each row by the row's share, w / sum(w). In cross_entropy
// without weights, every row's share is 1 / R.
// The forward keeps the logits, and the target, normalizer and share of each row.
#include "core/ops/weighted_cross_entropy.h"

#include <algorithm>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/binary.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/cross_entropy_rows.h"
#include "core/ops/sum.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {

void check_class_weights(const Tensor& logits, const Tensor& weights) {
  if (!weights.defined()) return;
  const Shape expected{logits.size(-1)};
  TESSERA_CHECK(weights.shape() == expected,
                "cross_entropy: class weights have shape {}, expected {}", weights.shape(),
                expected);
  TESSERA_CHECK(weights.dtype() == DType::f32,
                "cross_entropy: class weights have dtype {}, expected f32",
                dtype_name(weights.dtype()));
}

/// The target and the share of each row, which do not depend on the logits.
struct TargetRows {
  Tensor targets;  // i32, in [0, V); 0 for an ignored row
  Tensor shares;   // f32: the row's weight divided by the sum of weights
};

TargetRows target_rows(const Context& context, const Tensor& targets, int64_t vocabulary,
                       const CrossEntropyOptions& options) {
  const Shape& shape = targets.shape();
  const Device device = targets.device();
  const TargetRows rows{Tensor::empty(shape, DType::i32, device),
                        Tensor::empty(shape, DType::f32, device)};
  const Tensor weights = context.workspace(shape);
  const Tensor total = context.workspace({});
  kernels::target_weights(context, weights, rows.targets, targets, options.class_weights,
                          options.ignored);
  kernels::check_targets(context, "cross_entropy", rows.targets, vocabulary);
  kernels::sum(context, total, weights, 1.0f);
  kernels::check_total_weight(context, total, targets.elements());
  kernels::binary(context, rows.shares, weights, total, Binary::div);
  return rows;
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  if (!options.class_weights.defined() && !options.ignored) return cross_entropy(logits, targets);
  check_cross_entropy(logits, targets);
  check_class_weights(logits, options.class_weights);
  const trace::Scope scope("cross_entropy");
  const InUse in_use({&logits, &targets, &options.class_weights});
  const Context context = current_context(logits.device());
  const TargetRows rows = target_rows(context, targets, logits.size(-1), options);
  const Tensor normalizers = Tensor::empty({targets.elements(), 2}, DType::f32, logits.device());
  const Tensor losses = context.workspace(targets.shape());
  const Tensor loss = Tensor::empty({}, DType::f32, logits.device());
  kernels::cross_entropy_forward(context, losses, normalizers, logits, rows.targets,
                                 logits.size(-1));
  // The losses of rows with share 0 are set to 0 before the multiplication. Such a loss may be
  // infinite or NaN, and its product with 0 would be NaN.
  kernels::binary(context, losses, rows.shares, losses, Binary::where_nonzero);
  kernels::binary(context, losses, losses, rows.shares, Binary::mul);
  kernels::sum(context, loss, losses, 1.0f);

  return record(
      "cross_entropy", loss, {logits},
      [logits = saved(logits), rows, normalizers](const Tensor& dloss, InputGradients& grads) {
        const InUse in_backward({&logits});
        // The gradient overwrites the logits, unless another tensor shares their memory or they are
        // a parameter.
        const bool in_place = logits.unique() && !logits.leaf();
        const Tensor dlogits = in_place ? logits : grads.destination(0);
        kernels::weighted_cross_entropy_backward(current_context(dloss.device()), dlogits, dloss,
                                                 logits, normalizers, rows.targets, rows.shares);
        if (in_place) grads.pass(0, dlogits);
      });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void target_weights(const Context&, const Tensor& weights, const Tensor& looked_up,
                    const Tensor& targets, const Tensor& class_weights,
                    std::optional<int32_t> ignored) {
  const float* of_class = class_weights.defined() ? class_weights.data<float>() : nullptr;
  const int64_t classes = class_weights.defined() ? class_weights.elements() : 0;
  for (int64_t row = 0; row < targets.elements(); ++row) {
    const int32_t target = targets.data<int32_t>()[row];
    const bool counts = target != ignored;
    float weight = 1;
    if (of_class != nullptr) weight = target >= 0 && target < classes ? of_class[target] : 0.0f;
    weights.data<float>()[row] = counts ? weight : 0.0f;
    looked_up.data<int32_t>()[row] = counts ? target : 0;
  }
}

void check_total_weight(const Context&, const Tensor& total, int64_t rows) {
  TESSERA_CHECK(*total.data<float>() != 0,
                "cross_entropy: the weights of {} targets add up to zero, for example because all "
                "are ignored or belong to classes of weight 0",
                rows);
}

void weighted_cross_entropy_backward(const Context&, const Tensor& dlogits, const Tensor& dloss,
                                     const Tensor& logits, const Tensor& normalizers,
                                     const Tensor& targets, const Tensor& shares) {
  const int64_t columns = logits.size(-1);
  const float* kept = normalizers.data<float>();
  const int32_t* target = targets.data<int32_t>();
  const float* share = shares.data<float>();
  const float scale = *dloss.data<float>();
  visit_float(logits.dtype(), "cross_entropy", [&]<class T>() {
    T* out = dlogits.data<T>();
    const T* x = logits.data<T>();
    parallel_ranges(targets.elements(), 16 * columns, [=](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* to = out + row * columns;
        if (share[row] == 0) {
          std::fill_n(to, columns, T(0.0f));
        } else {
          cross_entropy_row_gradient(to, x + row * columns, columns, target[row],
                                     {kept[2 * row], kept[2 * row + 1]}, share[row] * scale);
        }
      }
    });
  });
}

}  // namespace tessera::cpu
