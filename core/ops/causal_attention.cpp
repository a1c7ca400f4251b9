// causal_attention: y (B, T, C) from packed qkv (B, T, 3C). For each sequence and each of the H
// heads, which have D = C / H channels,
//   y[t] = sum over s <= t of p[t, s] v[s],
// where p[t, :] is the softmax of q[t] . k[s] / sqrt(D) over s <= t.
//
// The T x T scores of a head are never stored as a whole. For each tile of query rows, the code
// loops over blocks of keys. A running maximum of the scores and a running sum of their
// exponentials make the softmax exact (Dao et al., arXiv:2205.14135). The forward keeps logsumexp
// (B, H, T), from which the backward recomputes the probabilities.
//
// On the CPU, one thread computes all products of a tile (forward) or of a head (backward). So the
// bits of a sequence's result depend neither on the number of threads nor on other sequences of the
// batch.
#include <cmath>
#include <cstdint>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/attention_tiles.h"
#include "core/ops/causal_attention.h"
#include "core/trace.h"

namespace tessera::ops {

Tensor causal_attention(const Tensor& qkv, int64_t heads) {
  TESSERA_CHECK(qkv.rank() == 3 && qkv.size(2) % 3 == 0,
                "causal_attention: qkv has shape {}, expected [B, T, 3C]", qkv.shape());
  const int64_t channels = qkv.size(2) / 3;
  TESSERA_CHECK(heads > 0 && channels % heads == 0,
                "causal_attention: {} channels cannot be divided into {} heads", channels, heads);
  const trace::Scope scope("causal_attention");
  const InUse in_use({&qkv});
  const int64_t batch = qkv.size(0);
  const int64_t tokens = qkv.size(1);
  Tensor y = Tensor::empty({batch, tokens, channels}, qkv.dtype(), qkv.device());
  Tensor logsumexp = Tensor::empty({batch, heads, tokens}, DType::f32, qkv.device());
  kernels::attention_forward(current_context(qkv.device()), y, logsumexp, qkv, heads);

  return record(
      "causal_attention", y, {qkv},
      [qkv = saved(qkv), y = saved(y), logsumexp, heads](const Tensor& dy, InputGradients& grads) {
        const InUse in_backward({&qkv});
        kernels::attention_backward(current_context(dy.device()), grads.destination(0), dy, y,
                                    logsumexp, qkv, heads);
      });
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

/// Returns the sizes and layouts of packed qkv. Each token has its q, then its k, then its v.
attention::Sizes packed_sizes(const Tensor& qkv, int64_t heads) {
  const int64_t channels = qkv.size(2) / 3;
  const int64_t head = channels / heads;
  const attention::Layout packed{qkv.size(1), 3 * channels};
  return {.batch = qkv.size(0),
          .heads = heads,
          .kv_heads = heads,
          .head = head,
          .scale = 1.0f / std::sqrt(static_cast<float>(head)),
          .causal = true,
          .q = packed,
          .kv = packed,
          .y = {qkv.size(1), channels}};
}

template <class T>
attention::Operands<T> packed_operands(T* qkv, const attention::Sizes& s) {
  return {qkv, qkv + s.y.stride, qkv + 2 * s.y.stride};
}

}  // namespace

void attention_forward(const Context& context, const Tensor& y, const Tensor& logsumexp,
                       const Tensor& qkv, int64_t heads) {
  const attention::Sizes s = packed_sizes(qkv, heads);
  if (s.empty()) return;
  visit_float(qkv.dtype(), "causal_attention", [&]<class T>() {
    attention::forward<T>(context, s, packed_operands<const T>(qkv.data<T>(), s), y.data<T>(),
                          logsumexp.data<float>());
  });
}

void attention_backward(const Context& context, const Tensor& dqkv, const Tensor& dy,
                        const Tensor& y, const Tensor& logsumexp, const Tensor& qkv,
                        int64_t heads) {
  const attention::Sizes s = packed_sizes(qkv, heads);
  if (s.empty()) return;
  visit_float(qkv.dtype(), "causal_attention", [&]<class T>() {
    attention::backward<T>(context, s, packed_operands<const T>(qkv.data<T>(), s),
                           {dy.data<T>(), y.data<T>(), logsumexp.data<float>()},
                           packed_operands(dqkv.data<T>(), s));
  });
}

}  // namespace tessera::cpu
