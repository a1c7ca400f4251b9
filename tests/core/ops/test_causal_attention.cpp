#include "core/check_gradient.h"
#include "core/ops/causal_attention.h"
#include "core/ops/copy.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

struct Case {
  int64_t batch, tokens, heads, size;
};

struct Reference {
  Values y, dqkv;
};

/// Computes one head of one sequence. The head begins at `base` in qkv (T, 3C), and at `out` in y
/// (T, C).
void reference_head(const Case& c, const Values& qkv, const Values& dy, size_t base, size_t out,
                    Reference& r) {
  const auto tokens = static_cast<size_t>(c.tokens);
  const auto size = static_cast<size_t>(c.size);
  const size_t channels = static_cast<size_t>(c.heads) * size;
  const double scale = 1 / std::sqrt(static_cast<double>(c.size));
  const auto at = [&](size_t t, size_t part, size_t d) {
    return base + t * 3 * channels + part * channels + d;
  };
  for (size_t t = 0; t < tokens; ++t) {
    Values p(t + 1), dp(t + 1, 0.0);
    double sum = 0, delta = 0;
    for (size_t s = 0; s <= t; ++s) {
      double score = 0;
      for (size_t d = 0; d < size; ++d) score += qkv[at(t, 0, d)] * qkv[at(s, 1, d)];
      sum += p[s] = std::exp(score * scale);
    }
    for (size_t s = 0; s <= t; ++s) {
      p[s] /= sum;
      for (size_t d = 0; d < size; ++d) {
        const double grad = dy[out + t * channels + d];
        r.y[out + t * channels + d] += p[s] * qkv[at(s, 2, d)];
        r.dqkv[at(s, 2, d)] += p[s] * grad;
        dp[s] += grad * qkv[at(s, 2, d)];
      }
      delta += p[s] * dp[s];
    }
    for (size_t s = 0; s <= t; ++s) {
      const double ds = p[s] * (dp[s] - delta) * scale;
      for (size_t d = 0; d < size; ++d) {
        r.dqkv[at(t, 0, d)] += ds * qkv[at(s, 1, d)];
        r.dqkv[at(s, 1, d)] += ds * qkv[at(t, 0, d)];
      }
    }
  }
}

Reference reference(const Case& c, const Tensor& qkv, const Tensor& dy) {
  Reference r{Values(static_cast<size_t>(dy.elements()), 0.0),
              Values(static_cast<size_t>(qkv.elements()), 0.0)};
  const Values q = values_of(qkv), g = values_of(dy);
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t row = b * c.tokens * c.heads * c.size;
      reference_head(c, q, g, static_cast<size_t>(3 * row + h * c.size),
                     static_cast<size_t>(row + h * c.size), r);
    }
  }
  return r;
}

struct Result {
  Tensor y, dqkv;
};

Result attend(const Tensor& qkv, const Tensor& dy, int64_t heads) {
  const Tensor parameter = as_parameter(qkv);
  const Tensor y = ops::causal_attention(parameter, heads);
  backward_from(y, dy);
  return {y.detach(), parameter.leaf()->gradient};
}

void check_against_reference(const Case& c, DType dtype, float spread) {
  const int64_t channels = c.heads * c.size;
  const Tensor qkv =
      random_tensor_of(dtype, {c.batch, c.tokens, 3 * channels}, 1, -spread, spread);
  const Tensor dy = random_tensor_of(dtype, {c.batch, c.tokens, channels}, 2);
  const Result result = attend(qkv, dy, c.heads);
  const Reference expected = reference(c, qkv, dy);
  // The forward rounds the probabilities and y to `dtype`. The backward also rounds the gradients
  // of the scores, and its results.
  CHECK(relative_error(result.y, expected.y) < tolerance(dtype, 2));
  CHECK(relative_error(result.dqkv, expected.dqkv) < tolerance(dtype, 4, 5e-5));
}

TEST_CASE("causal_attention and its gradient equal float64") {
  // The lengths are around the CPU's tile of 64 queries and its block of 512 keys, with various
  // head sizes.
  const Case c = GENERATE(Case{1, 1, 1, 1}, Case{2, 2, 1, 3}, Case{1, 63, 2, 8}, Case{3, 64, 2, 5},
                          Case{1, 65, 3, 16}, Case{2, 100, 2, 33}, Case{1, 512, 1, 4},
                          Case{1, 513, 1, 8}, Case{1, 700, 2, 16}, Case{1, 1100, 1, 2},
                          Case{2, 67, 2, 100}, Case{1, 33, 2, 129}, Case{1, 50, 1, 256});
  if (c.tokens > 520 && !on_cpu() && !on_real_gpu()) return;  // slow on the emulated device
  check_against_reference(c, GENERATE(from_range(float_dtypes())), GENERATE(0.5f, 6.0f));
}

TEST_CASE("causal_attention equals float64 at the head sizes that use tensor cores") {
  // The lengths are around the kernels' tiles of 128 and 64 queries, and of 128, 64 and 32 keys.
  const Case c = GENERATE(Case{3, 1, 2, 64}, Case{1, 31, 1, 64}, Case{1, 64, 2, 64},
                          Case{2, 129, 2, 64}, Case{1, 200, 3, 64}, Case{1, 384, 1, 64},
                          Case{2, 1, 1, 128}, Case{1, 33, 1, 128}, Case{1, 128, 1, 128},
                          Case{2, 161, 2, 128}, Case{1, 321, 1, 128});
  check_against_reference(c, GENERATE(from_range(float_dtypes())), GENERATE(0.5f, 6.0f));
}

/// Returns a copy that begins one element after an aligned address.
Tensor moved(const Tensor& x) {
  const Tensor room = Tensor::empty({x.elements() + 1}, x.dtype());
  const Tensor result = room.flat(1, x.elements() + 1).view(x.shape());
  kernels::copy(test_context(), result, x);
  return result;
}

TEST_CASE("causal_attention takes tensors at any address") {
  const Case c = GENERATE(Case{2, 70, 2, 64}, Case{1, 70, 1, 128});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const int64_t channels = c.heads * c.size;
  const Tensor qkv = random_tensor_of(dtype, {c.batch, c.tokens, 3 * channels}, 1);
  const Tensor dy = random_tensor_of(dtype, {c.batch, c.tokens, channels}, 2);
  const Result result = attend(moved(qkv), moved(dy), c.heads);
  const Reference expected = reference(c, qkv, dy);
  CHECK(relative_error(result.y, expected.y) < tolerance(dtype, 2));
  CHECK(relative_error(result.dqkv, expected.dqkv) < tolerance(dtype, 4, 5e-5));
}

TEST_CASE("causal_attention passes the check of its gradient") {
  const int64_t tokens = GENERATE(1, 3, 66);
  if (tokens > 3 && !on_cpu()) return;  // too slow: the check would launch thousands of kernels
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes())),
                                     .roundings = 4};
  CHECK(check_gradient([](const auto& in) { return ops::causal_attention(in[0], 2); },
                       {random_tensor({2, tokens, 3 * 4}, 1)}, options));
}

TEST_CASE("causal_attention survives scores beyond the range of exp") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Case c = GENERATE(Case{1, 600, 2, 4}, Case{1, 200, 1, 64}, Case{1, 200, 1, 128});
  const int64_t channels = c.heads * c.size;
  const Tensor qkv = random_tensor_of(dtype, {1, c.tokens, 3 * channels}, 1, -100, 100);
  const Tensor dy = random_tensor_of(dtype, {1, c.tokens, channels}, 2);
  const Result result = attend(qkv, dy, c.heads);
  for (const double value : values_of(result.y)) REQUIRE(std::fabs(value) <= 100.0);
  for (const double value : values_of(result.dqkv)) REQUIRE(std::isfinite(value));
}

TEST_CASE("causal_attention: a token does not see later ones") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const int64_t channels = GENERATE(8, 128, 256);
  const Tensor qkv = random_tensor({1, 130, 3 * channels}, 1);
  const Tensor before = ops::causal_attention(rounded_to(dtype, qkv), 2);
  for (int64_t i = 100 * 3 * channels; i < qkv.elements(); ++i) qkv.data<float>()[i] = 1e4f;
  const Tensor after = ops::causal_attention(rounded_to(dtype, qkv), 2);
  const auto seen = [&](const Tensor& y) { return y.view({130, channels}).rows(0, 100); };
  CHECK(same_bits(seen(before), seen(after)));
}

TEST_CASE("causal_attention has the same bits for every number of threads") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const ThreadCountRestorer restore;
  const Tensor qkv = random_tensor_of(dtype, {2, 200, 3 * 48}, 1, -2, 2);
  const Tensor dy = random_tensor_of(dtype, {2, 200, 48}, 2);
  set_thread_count(1);
  const Result first = attend(qkv, dy, 3);
  for (const int threads : {2, 3}) {
    set_thread_count(threads);
    const Result result = attend(qkv, dy, 3);
    CHECK(same_bits(result.y, first.y));
    CHECK(same_bits(result.dqkv, first.dqkv));
  }
}

TEST_CASE("causal_attention of a sequence does not depend on the rest of the batch") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const int64_t batch = 3, tokens = 100, channels = GENERATE(32, 256, 512);
  const Tensor qkv = random_tensor_of(dtype, {batch, tokens, 3 * channels}, 1, -2, 2);
  const Tensor dy = random_tensor_of(dtype, {batch, tokens, channels}, 2);
  const Result all = attend(qkv, dy, 4);
  for (int64_t b = 0; b < batch; ++b) {
    const Result one = attend(qkv.rows(b, b + 1), dy.rows(b, b + 1), 4);
    CHECK(same_bits(one.y, all.y.rows(b, b + 1)));
    CHECK(same_bits(one.dqkv, all.dqkv.rows(b, b + 1)));
  }
}

TEST_CASE("causal_attention never holds a T x T matrix") {
  const int64_t batch = 1, tokens = 2048, heads = 2, channels = 32;
  const Tensor qkv = random_tensor({batch, tokens, 3 * channels}, 1);
  const Tensor dy = random_tensor({batch, tokens, channels}, 2);
  MemoryLedger& ledger = memory_ledger(default_device());
  ledger.reset_peaks();
  const int64_t before = ledger.current_total();
  attend(qkv, dy, heads);
  const int64_t added = ledger.peak_total() - before;
  CHECK(added < batch * heads * tokens * tokens * 4 / 8);
  // On the CPU, each thread needs 128 KiB for a tile of 64 x 512 scores, 128 KiB for the gradients
  // of these scores, and 256 KiB for the dk and dv of one head. The rest of the bound is for
  // smaller buffers.
  const int64_t workspace = ledger.peak(Category::workspace);
  CHECK(workspace < thread_count() * (int64_t{512} << 10) + tokens * channels * 4);
}

TEST_CASE("causal_attention's workspace is proportional to the threads, in every run") {
  if (!on_cpu()) return;
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const int64_t tokens = GENERATE(100, 600);
  const ThreadCountRestorer restore;
  const Tensor qkv = random_tensor_of(dtype, {1, tokens, 3 * 12}, 1);
  const Tensor dy = random_tensor_of(dtype, {1, tokens, 12}, 2);
  const auto workspace = [](const auto& body) {
    memory_ledger().reset_peaks();
    body();
    return memory_ledger().peak(Category::workspace);
  };
  int64_t forward = 0, both = 0;
  for (const int threads : {1, 2, 3}) {
    set_thread_count(threads);
    for (int repeat = 0; repeat < 5; ++repeat) {
      const int64_t first = workspace([&] { ops::causal_attention(qkv, 3); });
      const int64_t second = workspace([&] { attend(qkv, dy, 3); });
      if (forward == 0) {
        forward = first;
        both = second;
      }
      CHECK(first == threads * forward);
      CHECK(second == threads * both);
    }
  }
}

TEST_CASE("causal_attention's backward on CUDA takes a workspace of one float per row") {
  if (on_cpu()) return;
  const Case c = GENERATE(Case{2, 70, 3, 16}, Case{2, 70, 3, 64});
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const int64_t channels = c.heads * c.size;
  const Tensor qkv = random_tensor_of(dtype, {c.batch, c.tokens, 3 * channels}, 1);
  const Tensor y = Tensor::empty({c.batch, c.tokens, channels}, dtype);
  const Tensor logsumexp = Tensor::empty({c.batch, c.heads, c.tokens});
  const Tensor dqkv = Tensor::empty(qkv.shape(), dtype);
  const Context context = test_context();
  MemoryLedger& ledger = memory_ledger(default_device());
  ledger.reset_peaks();
  kernels::attention_forward(context, y, logsumexp, qkv, c.heads);
  CHECK(ledger.peak(Category::workspace) == 0);
  kernels::attention_backward(context, dqkv, y, y, logsumexp, qkv, c.heads);
  CHECK(ledger.peak(Category::workspace) == 4 * c.batch * c.heads * c.tokens);
}

TEST_CASE("causal_attention of empty tensors") {
  CHECK(ops::causal_attention(Tensor::empty({0, 5, 12}), 2).shape() == Shape{0, 5, 4});
  const Tensor none = Tensor::empty({3, 0, 12});
  CHECK(attend(none, Tensor::empty({3, 0, 4}), 2).dqkv.shape() == none.shape());
}

TEST_CASE("causal_attention refuses shapes that do not fit, and names them") {
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(
      ops::causal_attention(Tensor::empty({2, 3}), 1),
      ContainsSubstring("causal_attention: qkv has shape [2, 3], expected [B, T, 3C]"));
  CHECK_THROWS_WITH(ops::causal_attention(Tensor::empty({2, 3, 10}), 1),
                    ContainsSubstring("qkv has shape [2, 3, 10]"));
  CHECK_THROWS_WITH(ops::causal_attention(Tensor::empty({2, 3, 12}), 3),
                    ContainsSubstring("4 channels cannot be divided into 3 heads"));
  CHECK_THROWS_WITH(ops::causal_attention(Tensor::empty({2, 3, 12}), 0),
                    ContainsSubstring("cannot be divided into 0 heads"));
  if (on_cpu()) return;
  CHECK_THROWS_WITH(ops::causal_attention(Tensor::empty({2, 3, 3 * 257}), 1),
                    ContainsSubstring("heads of size 257, expected at most 256 on CUDA"));
}

}  // namespace
}  // namespace tessera::test
