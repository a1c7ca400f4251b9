// attention: q (B, T, H, D), k and v (B, S, G, D) -> y (B, T, H, D). For each sequence and head h,
//   y[t] = sum over s of p[t, s] v[s], with p[t, :] the softmax of scale * (q[t] . k[s]) over s.
// Head h of q uses head h / (H / G) of k and v. If causal, s runs from 0 to t + S - T only.
//
// The CPU kernels are the loops of attention_tiles.h, which causal_attention uses too. The forward
// keeps the logsumexp of each row of scaled scores, so that the backward can recompute p from q and
// k. dk and dv are summed in f32 over the heads of q that share a head of k and v, one head after
// the other.
#include "core/ops/attention.h"

#include <cmath>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/attention_tiles.h"
#include "core/ops/fill.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {
void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v,
                  const AttentionOptions& options) {
  TESSERA_CHECK(q.rank() == 4 && q.size(2) > 0 && q.size(3) > 0,
                "attention: q has shape {}, expected (B, T, H, D) with H, D > 0", q.shape());
  TESSERA_CHECK(k.rank() == 4 && k.size(0) == q.size(0) && k.size(3) == q.size(3),
                "attention: k has shape {}, expected [{}, S, G, {}]", k.shape(), q.size(0),
                q.size(3));
  TESSERA_CHECK(v.shape() == k.shape(), "attention: v has shape {}, expected {}, the shape of k",
                v.shape(), k.shape());
  TESSERA_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0,
                "attention: {} heads of q cannot share {} heads of k and v", q.size(2), k.size(2));
  TESSERA_CHECK(k.dtype() == q.dtype() && v.dtype() == q.dtype(),
                "attention: k and v have dtypes {} and {}, expected {}", dtype_name(k.dtype()),
                dtype_name(v.dtype()), dtype_name(q.dtype()));
  TESSERA_CHECK(k.size(1) > 0 || q.elements() == 0, "attention: there are {} queries and no keys",
                q.size(1));
  TESSERA_CHECK(!options.causal || k.size(1) >= q.size(1),
                "attention: {} queries and {} keys, expected at least as many keys as queries, "
                "since the last query is aligned with the last key",
                q.size(1), k.size(1));
  TESSERA_CHECK(options.scale >= 0 && std::isfinite(options.scale),
                "attention: scale is {}, expected finite and above 0, or 0 for 1 / sqrt(D)",
                options.scale);
}
}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions options) {
  check_inputs(q, k, v, options);
  const trace::Scope scope("attention");
  const InUse in_use({&q, &k, &v});
  const float scale =
      options.scale > 0 ? options.scale : 1.0f / std::sqrt(static_cast<float>(q.size(3)));
  const AttentionInputs in{saved(q), saved(k), saved(v), scale, options.causal};
  Tensor y = Tensor::empty(q.shape(), q.dtype(), q.device());
  Tensor logsumexp = Tensor::empty({q.size(0), q.size(2), q.size(1)}, DType::f32, q.device());
  if (y.elements() > 0) {
    kernels::grouped_attention_forward(current_context(q.device()), y, logsumexp, in);
  }

  return record(
      "attention", y, {q, k, v},
      [in, y = saved(y), logsumexp](const Tensor& dy, InputGradients& grads) {
        const Context context = current_context(dy.device());
        const InUse in_backward({&in.q, &in.k, &in.v});
        const auto destination = [&](int input, const Tensor& x) {
          return grads.wanted(input) ? grads.destination(input)
                                     : context.workspace(x.shape(), x.dtype());
        };
        const AttentionGradients dx{destination(0, in.q), destination(1, in.k),
                                    destination(2, in.v)};
        if (dy.elements() == 0) {  // no queries: dk and dv are zero
          for (const Tensor& d : {dx.dk, dx.dv}) kernels::fill(context, d, 0.0f);
          return;
        }
        kernels::grouped_attention_backward(context, dx, AttentionResults{dy, y, logsumexp}, in);
      });
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

attention::Sizes sizes_of(const AttentionInputs& in) {
  const int64_t heads = in.q.size(2);
  const int64_t kv_heads = in.k.size(2);
  const int64_t head = in.q.size(3);
  return {.batch = in.q.size(0),
          .heads = heads,
          .kv_heads = kv_heads,
          .head = head,
          .scale = in.scale,
          .causal = in.causal,
          .q = {in.q.size(1), heads * head},
          .kv = {in.k.size(1), kv_heads * head},
          .y = {in.q.size(1), heads * head}};
}

template <class T>
attention::Operands<const T> operands_of(const AttentionInputs& in) {
  return {in.q.data<T>(), in.k.data<T>(), in.v.data<T>()};
}

}  // namespace

void grouped_attention_forward(const Context& context, const Tensor& y, const Tensor& logsumexp,
                               const AttentionInputs& in) {
  visit_float(y.dtype(), "attention", [&]<class T>() {
    attention::forward<T>(context, sizes_of(in), operands_of<T>(in), y.data<T>(),
                          logsumexp.data<float>());
  });
}

void grouped_attention_backward(const Context& context, const AttentionGradients& gradients,
                                const AttentionResults& results, const AttentionInputs& in) {
  const auto& [dq, dk, dv] = gradients;
  const auto& [dy, y, logsumexp] = results;
  visit_float(dy.dtype(), "attention", [&]<class T>() {
    attention::backward<T>(context, sizes_of(in), operands_of<T>(in),
                           {dy.data<T>(), y.data<T>(), logsumexp.data<float>()},
                           {dq.data<T>(), dk.data<T>(), dv.data<T>()});
  });
}

}  // namespace tessera::cpu
