// causal_attention: y (B, T, C) from packed qkv (B, T, 3C): for each sequence and head h of H,
//   y[t] = sum over s <= t of softmax over s (q[t] k[s] / sqrt(D)) v[s],  D = C / H.
//
// The T x T scores of a head never exist: tiles of query rows meet blocks of keys, and a running
// maximum and sum make the softmax exact (Dao et al., arXiv:2205.14135). The forward keeps
// logsumexp (B, H, T), from which the backward computes the probabilities again.
//
// One thread computes a head, or in the forward a tile, from its first to its last product. So the
// bits depend neither on the number of threads nor on the other sequences of the batch.
#include <algorithm>
#include <cstdint>

#include <omp.h>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/causal_attention.h"
#include "core/ops/causal_attention_tiles.h"
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

/// Threads for `tasks` pieces of about `flops` each.
int team_size(int64_t tasks, int64_t flops) {
  const int64_t useful = worth_a_team(tasks, flops) ? tasks : 1;
  return static_cast<int>(std::min<int64_t>(thread_count(), std::max<int64_t>(1, useful)));
}

/// body(task, scratch) for each task, on a team; each thread has a scratch of its own.
template <class T, class Body>
void run_tasks(const Context& context, const attention::Sizes& s, bool backward, int64_t tasks,
               int threads, const Body& body) {
  const int64_t floats = attention::Scratch<T>::floats(s, backward);
  const Tensor workspace = context.workspace({threads, floats});
  TeamErrors errors;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t task = 0; task < tasks; ++task) {
    errors.guard([&] {
      float* memory = workspace.data<float>() + omp_get_thread_num() * floats;
      body(task, attention::Scratch<T>(memory, s, backward));
    });
  }
  errors.rethrow();
}

}  // namespace

void attention_forward(const Context& context, const Tensor& y, const Tensor& logsumexp,
                       const Tensor& qkv, int64_t heads) {
  const attention::Sizes s(qkv, heads);
  if (s.empty()) return;
  const int64_t tasks = s.batch * heads * s.tiles;
  const int threads = team_size(tasks, attention_tile_rows * s.tokens * s.head);
  visit_float(qkv.dtype(), "causal_attention", [&]<class T>() {
    const auto forward = [&](int64_t task, const attention::Scratch<T>& scratch) {
      const int64_t pair = task / s.tiles;  // sequence and head
      const int64_t sequence = pair / heads;
      const int64_t h = pair % heads;
      attention::forward_tile(s, attention::head_of<const T>(qkv.data<T>(), s, sequence, h),
                              task % s.tiles * attention_tile_rows,
                              attention::slice_of(y.data<T>(), s, sequence, h),
                              logsumexp.data<float>() + pair * s.tokens, scratch);
    };
    run_tasks<T>(context, s, false, tasks, threads, forward);
  });
}

void attention_backward(const Context& context, const Tensor& dqkv, const Tensor& dy,
                        const Tensor& y, const Tensor& logsumexp, const Tensor& qkv,
                        int64_t heads) {
  const attention::Sizes s(qkv, heads);
  if (s.empty()) return;
  const int64_t tasks = s.batch * heads;
  const int threads = team_size(tasks, s.tokens * s.tokens * s.head);
  visit_float(qkv.dtype(), "causal_attention", [&]<class T>() {
    const auto backward = [&](int64_t task, const attention::Scratch<T>& scratch) {
      const int64_t sequence = task / heads;
      const int64_t h = task % heads;
      const attention::HeadGradients<T> g{
          attention::head_of(dqkv.data<T>(), s, sequence, h),
          attention::slice_of<const T>(dy.data<T>(), s, sequence, h),
          attention::slice_of<const T>(y.data<T>(), s, sequence, h),
          logsumexp.data<float>() + task * s.tokens};
      attention::backward_head(s, attention::head_of<const T>(qkv.data<T>(), s, sequence, h), g,
                               scratch);
    };
    run_tasks<T>(context, s, true, tasks, threads, backward);
  });
}

}  // namespace tessera::cpu
