// Tests attention for any numbers of queries, keys and heads. Results and gradients are compared
// with float64. On the CPU, the bits must equal those of causal_attention where both operations
// apply.
#include <cmath>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

using ops::AttentionOptions;

struct Case {
  int64_t batch, queries, keys, heads, kv_heads, size;
  bool causal = false;

  Shape q() const { return {batch, queries, heads, size}; }
  Shape kv() const { return {batch, keys, kv_heads, size}; }
};

struct Inputs {
  Tensor q, k, v, dy;
};

Inputs inputs_of(const Case& c, DType dtype, float spread = 1) {
  return {random_tensor_of(dtype, c.q(), 1, -spread, spread),
          random_tensor_of(dtype, c.kv(), 2, -spread, spread), random_tensor_of(dtype, c.kv(), 3),
          random_tensor_of(dtype, c.q(), 4)};
}

struct Reference {
  Values y, dq, dk, dv;
};

/// Adds the contribution of query t (in sequence b, head h) to the output and the gradients in `r`.
void reference_query(const Case& c, const Inputs& in, double scale, int64_t b, int64_t t, int64_t h,
                     Reference& r) {
  const int64_t visible = c.causal ? t + 1 + c.keys - c.queries : c.keys;
  const auto q_at = static_cast<size_t>(((b * c.queries + t) * c.heads + h) * c.size);
  const auto k_at = [&](int64_t s) {
    const int64_t shared = h / (c.heads / c.kv_heads);
    return static_cast<size_t>(((b * c.keys + s) * c.kv_heads + shared) * c.size);
  };
  const Values q = values_of(in.q), k = values_of(in.k), v = values_of(in.v);
  const Values dy = values_of(in.dy);
  const auto size = static_cast<size_t>(c.size);
  Values p, dp;
  double sum = 0, delta = 0, highest = -INFINITY;
  for (int64_t s = 0; s < visible; ++s) {
    double score = 0, gradient = 0;
    for (size_t d = 0; d < size; ++d) {
      score += q[q_at + d] * k[k_at(s) + d];
      gradient += dy[q_at + d] * v[k_at(s) + d];
    }
    p.push_back(score * scale);
    dp.push_back(gradient);
    highest = std::max(highest, p.back());
  }
  for (double& value : p) sum += value = std::exp(value - highest);
  for (size_t s = 0; s < p.size(); ++s) delta += (p[s] /= sum) * dp[s];
  for (int64_t s = 0; s < visible; ++s) {
    const auto i = static_cast<size_t>(s);
    const double ds = p[i] * (dp[i] - delta) * scale;
    for (size_t d = 0; d < size; ++d) {
      r.y[q_at + d] += p[i] * v[k_at(s) + d];
      r.dv[k_at(s) + d] += p[i] * dy[q_at + d];
      r.dq[q_at + d] += ds * k[k_at(s) + d];
      r.dk[k_at(s) + d] += ds * q[q_at + d];
    }
  }
}

Reference reference(const Case& c, const Inputs& in, double scale) {
  const auto q = static_cast<size_t>(in.q.elements()), kv = static_cast<size_t>(in.k.elements());
  Reference r{Values(q), Values(q), Values(kv), Values(kv)};
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t t = 0; t < c.queries; ++t) {
      for (int64_t h = 0; h < c.heads; ++h) reference_query(c, in, scale, b, t, h, r);
    }
  }
  return r;
}

struct Result {
  Tensor y, dq, dk, dv;
};

Result attend(const Inputs& in, AttentionOptions options) {
  const Tensor q = as_parameter(in.q), k = as_parameter(in.k), v = as_parameter(in.v);
  const Tensor y = ops::attention(q, k, v, options);
  backward_from(y, in.dy);
  return {y.detach(), q.leaf()->gradient, k.leaf()->gradient, v.leaf()->gradient};
}

TEST_CASE("attention and its gradients equal float64", "[attention]") {
  const Case c = GENERATE(Case{1, 1, 1, 1, 1, 1}, Case{2, 5, 3, 2, 2, 4}, Case{2, 3, 7, 4, 2, 3},
                          Case{1, 65, 70, 3, 1, 8}, Case{1, 9, 9, 2, 1, 5, true},
                          Case{2, 4, 9, 6, 3, 4, true}, Case{1, 1, 66, 2, 2, 16, true},
                          Case{1, 70, 100, 2, 1, 6, true}, Case{1, 3, 520, 2, 1, 4},
                          Case{1, 20, 530, 2, 1, 4, true}, Case{2, 64, 64, 2, 2, 33, true});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const float scale = GENERATE(0.0f, 0.3f);
  const Inputs in = inputs_of(c, dtype, GENERATE(1.0f, 2.0f));
  const Result result = attend(in, {.causal = c.causal, .scale = scale});
  const double used = scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(c.size));
  const Reference expected = reference(c, in, used);
  // The forward rounds the probabilities and y to `dtype`: two roundings. The backward also rounds
  // the gradients of the scores, and dq, dk and dv: four roundings in total.
  CHECK(relative_error(result.y, expected.y) < tolerance(dtype, 2));
  CHECK(relative_error(result.dq, expected.dq) < tolerance(dtype, 4, 5e-5));
  CHECK(relative_error(result.dk, expected.dk) < tolerance(dtype, 4, 5e-5));
  CHECK(relative_error(result.dv, expected.dv) < tolerance(dtype, 4, 5e-5));
}

TEST_CASE("attention over several tiles of queries equals float64", "[attention]") {
  const Case c = GENERATE(Case{1, 300, 310, 2, 1, 4, true}, Case{1, 270, 40, 2, 2, 4});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Inputs in = inputs_of(c, dtype);
  const Result result = attend(in, {.causal = c.causal});
  const Reference expected = reference(c, in, 0.5);
  CHECK(relative_error(result.y, expected.y) < tolerance(dtype, 2));
  CHECK(relative_error(result.dq, expected.dq) < tolerance(dtype, 4, 5e-5));
  CHECK(relative_error(result.dk, expected.dk) < tolerance(dtype, 4, 5e-5));
  CHECK(relative_error(result.dv, expected.dv) < tolerance(dtype, 4, 5e-5));
}

TEST_CASE("attention has the bits of causal_attention on the CPU", "[attention]") {
  if (!on_cpu()) return;  // on a GPU, the two operations have different kernels
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const int64_t tokens = GENERATE(1, 64, 130, 600), heads = 3, size = 8;
  const Case c{2, tokens, tokens, heads, heads, size, true};
  const Inputs in = inputs_of(c, dtype);
  const Shape packed{2, tokens, heads * size};
  const Tensor qkv = as_parameter(
      ops::concat({in.q.view(packed), in.k.view(packed), in.v.view(packed)}, 2).detach());
  const Tensor y = ops::causal_attention(qkv, heads);
  backward_from(y, in.dy.view(packed));
  const Result result = attend(in, {.causal = true});
  CHECK(same_bits(result.y.view(packed), y));
  const Tensor gradients =
      ops::concat({result.dq.view(packed), result.dk.view(packed), result.dv.view(packed)}, 2);
  CHECK(same_bits(gradients, qkv.leaf()->gradient));
}

TEST_CASE("attention passes the check of its gradients", "[attention]") {
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes())), .roundings = 4};
  const bool causal = GENERATE(false, true);
  CHECK(check_gradient(
      [&](const auto& in) { return ops::attention(in[0], in[1], in[2], {.causal = causal}); },
      {random_tensor({2, 2, 4, 3}, 1), random_tensor({2, 3, 2, 3}, 2),
       random_tensor({2, 3, 2, 3}, 3)},
      options));
}

TEST_CASE("attention takes one tensor as q, k and v, and takes frozen inputs", "[attention]") {
  CHECK(check_gradient([](const auto& in) { return ops::attention(in[0], in[0], in[0]); },
                       {random_tensor({2, 3, 2, 4}, 1)}));
  const Inputs in = inputs_of({1, 3, 4, 2, 1, 4}, DType::f32);
  const Tensor k = as_parameter(in.k);
  backward_from(ops::attention(in.q, k, in.v), in.dy);
  CHECK(same_bits(k.leaf()->gradient, attend(in, {}).dk));
}

TEST_CASE("attention: a causal query does not see later keys", "[attention]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Case c{1, 90, 100, 2, 1, 8, true};
  const Inputs in = inputs_of(c, dtype);
  const Tensor before = ops::attention(in.q, in.k, in.v, {.causal = true});
  const Tensor k = widened(in.k), v = widened(in.v);
  for (int64_t i = 80 * 8; i < k.elements(); ++i) k.data<float>()[i] = v.data<float>()[i] = 1e4f;
  const Tensor after =
      ops::attention(in.q, rounded_to(dtype, k), rounded_to(dtype, v), {.causal = true});
  // The last query is aligned with the last key. So queries 0 to 69 see only keys 0 to 79, which
  // are unchanged.
  const auto seen = [&](const Tensor& y) { return y.view({90, 16}).rows(0, 70); };
  CHECK(same_bits(seen(before), seen(after)));
  CHECK_FALSE(same_bits(before, after));
}

TEST_CASE("attention survives scores beyond the range of exp", "[attention]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Case c{1, 70, 80, 2, 1, 16, GENERATE(false, true)};
  const Result result = attend(inputs_of(c, dtype, 100), {.causal = c.causal});
  for (const Tensor& x : {result.y, result.dq, result.dk, result.dv}) {
    for (const double value : values_of(x)) REQUIRE(std::isfinite(value));
  }
}

TEST_CASE("attention has the same bits for every number of threads", "[attention]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Case c{2, 150, 170, 6, 2, 16, GENERATE(false, true)};
  REQUIRE(same_bits_for_any_threads([&] {
    const Result result = attend(inputs_of(c, dtype, 2), {.causal = c.causal});
    return std::vector{result.y, result.dq, result.dk, result.dv};
  }));
}

TEST_CASE("attention's workspace is that of one sequence, whatever the batch size", "[attention]") {
  if (on_cpu()) return;  // the CPU's workspace depends on the number of threads
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Case one = GENERATE(Case{1, 5, 9, 4, 2, 8}, Case{1, 260, 300, 2, 1, 4, true});
  const auto workspace = [&](int64_t batch) {
    Case c = one;
    c.batch = batch;
    const Inputs in = inputs_of(c, dtype);
    MemoryLedger& ledger = memory_ledger(default_device());
    const int64_t before = ledger.current(Category::workspace);
    ledger.reset_peaks();
    const Tensor y = ops::attention(in.q, in.k, in.v, {.causal = c.causal});
    const int64_t forward = ledger.peak(Category::workspace) - before;
    attend(in, {.causal = c.causal});
    return std::pair{forward, ledger.peak(Category::workspace) - before};
  };
  const auto [forward, backward] = workspace(1);
  CHECK(workspace(3) == std::pair{forward, backward});
  const int64_t rows = std::min<int64_t>(one.queries, 256);  // queries processed at a time
  const int64_t in_dtype = dtype == DType::f32 ? 0 : dtype_size(dtype);
  const int64_t scores = one.heads * rows * one.keys * (4 + in_dtype);
  const int64_t products = 4 * one.heads * rows * one.size;
  const int64_t sums = 4 * (one.heads * rows + 2 * one.kv_heads * one.keys * one.size);
  // The BLAS library chooses the workspace of its matrix products, so only bounds can be checked.
  const int64_t library = forward - scores - products;
  CHECK((0 <= library && library < (64 << 20)));
  CHECK(backward - 2 * scores - products - sums >= 0);
  CHECK(backward - 2 * scores - products - sums < (64 << 20));
}

TEST_CASE("attention of empty tensors", "[attention]") {
  const Case c = GENERATE(Case{0, 5, 3, 2, 1, 4}, Case{2, 0, 3, 2, 1, 4}, Case{2, 0, 0, 2, 1, 4});
  const Result result = attend(inputs_of(c, DType::f32), {});
  CHECK(result.y.shape() == c.q());
  for (const double value : values_of(result.dk)) CHECK(value == 0);
  for (const double value : values_of(result.dv)) CHECK(value == 0);
}

TEST_CASE("attention refuses invalid arguments", "[attention]") {
  const auto attend_shapes = [](const Shape& q, const Shape& k, const Shape& v,
                                AttentionOptions options = {}) {
    ops::attention(Tensor::empty(q), Tensor::empty(k), Tensor::empty(v), options);
  };
  const Shape q{2, 3, 4, 8}, kv{2, 5, 2, 8};
  CHECK_THROWS_WITH(attend_shapes({2, 3, 8}, kv, kv),
                    "attention: q has shape [2, 3, 8], expected (B, T, H, D) with H, D > 0");
  CHECK_THROWS_WITH(attend_shapes(q, {2, 5, 2, 7}, kv),
                    "attention: k has shape [2, 5, 2, 7], expected [2, S, G, 8]");
  CHECK_THROWS_WITH(attend_shapes(q, kv, {2, 4, 2, 8}),
                    "attention: v has shape [2, 4, 2, 8], expected [2, 5, 2, 8], the shape of k");
  CHECK_THROWS_WITH(attend_shapes(q, {2, 5, 3, 8}, {2, 5, 3, 8}),
                    "attention: 4 heads of q cannot share 3 heads of k and v");
  CHECK_THROWS_WITH(attend_shapes(q, {2, 0, 2, 8}, {2, 0, 2, 8}),
                    "attention: there are 3 queries and no keys");
  CHECK_THROWS_WITH(attend_shapes(q, {2, 2, 2, 8}, {2, 2, 2, 8}, {.causal = true}),
                    "attention: 3 queries and 2 keys, expected at least as many keys as queries, "
                    "since the last query is aligned with the last key");
  for (const float scale : {-1.0f, INFINITY}) {
    CHECK_THROWS_WITH(
        attend_shapes(q, kv, kv, {.scale = scale}),
        fmt::format("attention: scale is {}, expected finite and above 0, or 0 for 1 / sqrt(D)",
                    scale));
  }
  CHECK_THROWS_WITH(
      ops::attention(Tensor::empty(q), Tensor::empty(kv, DType::bf16), Tensor::empty(kv)),
      "attention: k and v have dtypes bf16 and f32, expected f32");
}

}  // namespace
}  // namespace tessera::test
