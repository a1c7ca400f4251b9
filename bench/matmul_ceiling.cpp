// Times the matrix products of a GPT training step alone. No step can be faster than its products.
//
//   bench_matmul_ceiling --layers 6 --heads 6 --width 384 --context 256 --batch 12 --vocab 256
//                        --dtype fp32 --threads 1 --repeats 9
//
// Runs the products of forward and backward through the same cpu::gemm as the step:
//
//   linears     four a layer, with the gradients of their inputs and weights
//   attention   two products in forward, five in backward, in the same tiles as in the step; tiles
//               above the diagonal of the causal mask are left out
//   head        the output head's logits, with the gradients of their input and weight
//
// Each layer has weights and gradients of its own, as in a model. All layers share one set of
// activations, which fits the caches better than a model's activations do. No linear reads an
// activation that another product has written. Otherwise values would shrink, product by product,
// to subnormal numbers, which are slow. With bf16, all operands are bf16. The logits and the
// results of attention's products are f32, as in the step. All other results are bf16. Prints the
// medians as one JSON object.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <omp.h>

#include "core/context.h"
#include "core/cpu/gemm.h"
#include "core/ops.h"
#include "core/ops/causal_attention.h"

namespace {

using namespace tessera;

struct Sizes {
  int64_t layers = 6;
  int64_t heads = 6;
  int64_t width = 384;
  int64_t context = 256;
  int64_t batch = 12;
  int64_t vocab = 256;
  int threads = 1;
  int repeats = 9;
  std::string dtype_name = "fp32";

  DType dtype() const { return dtype_name == "bf16" ? DType::bf16 : DType::f32; }
  int64_t rows() const { return batch * context; }
};

Tensor buffer(const Shape& shape, DType dtype) {
  const Tensor x = Tensor::empty(shape);
  int64_t i = 0;
  for (float& value : x.values<float>()) value = static_cast<float>(i++ % 17 - 8) * 0.01f;
  return ops::convert(x, dtype);
}

struct Linear {
  Tensor weight, gradient;  // [in, out]

  Linear(int64_t in, int64_t out, DType dtype)
      : weight(buffer({in, out}, dtype)), gradient(buffer({in, out}, dtype)) {}
};

constexpr int64_t tile_elements = cpu::attention_tile_rows * cpu::attention_block_keys;

struct Buffers {
  std::vector<Linear> linears;  // four a layer
  Tensor head, head_gradient;   // [V, C]
  // Activations (R, C), (R, 4C) and (R, V). Products write the tensors named _out, and read the
  // others.
  Tensor narrow, narrow_out, wide, wide_out, logits, logits_out;
  // Each thread has the scores and the probabilities of a tile, and `sums`. The results y, dq, dk
  // and dv of an attention head are all written to `sums`, and overwrite each other. In f32, scores
  // and probabilities are one buffer.
  Tensor scores, probabilities, sums;

  explicit Buffers(const Sizes& s)
      : head(buffer({s.vocab, s.width}, s.dtype())),
        head_gradient(buffer({s.vocab, s.width}, s.dtype())),
        narrow(buffer({s.rows(), s.width}, s.dtype())),
        narrow_out(buffer({s.rows(), s.width}, s.dtype())),
        wide(buffer({s.rows(), 4 * s.width}, s.dtype())),
        wide_out(buffer({s.rows(), 4 * s.width}, s.dtype())),
        logits(buffer({s.rows(), s.vocab}, s.dtype())),
        logits_out(buffer({s.rows(), s.vocab}, DType::f32)),
        scores(buffer({s.threads, tile_elements}, DType::f32)),
        probabilities(s.dtype() == DType::f32 ? scores
                                              : buffer({s.threads, tile_elements}, s.dtype())),
        sums(buffer({s.threads, s.context * (s.width / s.heads)}, DType::f32)) {
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      linears.emplace_back(s.width, 3 * s.width, s.dtype());
      linears.emplace_back(s.width, s.width, s.dtype());
      linears.emplace_back(s.width, 4 * s.width, s.dtype());
      linears.emplace_back(4 * s.width, s.width, s.dtype());
    }
  }
};

struct Activation {
  const Tensor& read;
  const Tensor& written;
};

/// Computes y = x W, dx = dy W^T and dW = x^T dy. W is stored as [in, out], or, for the output
/// head, as [out, in].
void linear_products(int64_t rows, const Tensor& weight, const Tensor& gradient, bool in_out,
                     Activation x, Activation y) {
  const int64_t in = weight.size(in_out ? 0 : 1);
  const int64_t out = weight.size(in_out ? 1 : 0);
  const ConstMatrix w{weight.raw(), in_out ? out : 1, in_out ? 1 : in};
  const ConstMatrix w_transposed{weight.raw(), w.column_stride, w.row_stride};
  const ConstMatrix x_rows{x.read.raw(), in}, x_transposed{x.read.raw(), 1, in};
  const ConstMatrix y_rows{y.read.raw(), out}, y_transposed{y.read.raw(), 1, out};
  const auto run = [&](int64_t m, int64_t n, int64_t k, ConstMatrix a, ConstMatrix b,
                       const Tensor& c) {
    cpu::gemm({.m = m,
               .n = n,
               .k = k,
               .a = a,
               .b = b,
               .c = {c.raw(), n},
               .dtype = weight.dtype(),
               .c_dtype = c.dtype()});
  };
  run(rows, out, in, x_rows, w, y.written);
  run(rows, in, out, y_rows, w_transposed, x.written);
  run(in_out ? in : out, in_out ? out : in, rows, in_out ? x_transposed : y_transposed,
      in_out ? y_rows : x_rows, gradient);
}

/// The products of one attention head, in forward or backward, with the buffers of one thread.
struct Head {
  const Sizes& s;
  const std::byte* qkv;
  const std::byte* probabilities;
  float* scores;
  float* sums;

  void products(bool backward) const {
    const int64_t size = s.width / s.heads, stride = 3 * s.width, tile = cpu::attention_tile_rows;
    const auto element = [&](int64_t index) { return qkv + index * dtype_size(s.dtype()); };
    for (int64_t first = (s.context - 1) / tile * tile; first >= 0; first -= tile) {
      const int64_t rows = std::min(tile, s.context - first);
      for (int64_t key = 0; key < first + rows; key += cpu::attention_block_keys) {
        const int64_t keys = std::min(cpu::attention_block_keys, first + rows - key);
        const void* q = element(first * stride);
        const void* k = element(key * stride + s.width);
        for (int i = 0; i < (backward ? 2 : 1); ++i) {
          run(rows, keys, size, {q, stride}, {k, 1, stride}, {scores, keys}, false);
        }
        for (int i = 0; backward && i < 2; ++i) {
          run(keys, size, rows, {probabilities, 1, keys}, {q, stride}, {sums + key * size, size},
              first + rows < s.context);
        }
        run(rows, size, keys, {probabilities, keys}, {k, stride}, {sums, size}, key > 0);
      }
    }
  }

  void run(int64_t m, int64_t n, int64_t k, ConstMatrix a, ConstMatrix b, MutableMatrix c,
           bool accumulate) const {
    cpu::gemm({.m = m,
               .n = n,
               .k = k,
               .a = a,
               .b = b,
               .c = c,
               .accumulate = accumulate,
               .dtype = s.dtype()},
              {.threads = 1});
  }
};

void all_attention_products(const Sizes& s, const Buffers& b, bool backward) {
#pragma omp parallel for schedule(dynamic) num_threads(s.threads)
  for (int64_t task = 0; task < s.batch * s.heads; ++task) {
    const int64_t thread = omp_get_thread_num();
    // The packed q, k and v, (R, 3C), are the first part of the memory of `wide`, (R, 4C).
    const int64_t offset = task / s.heads * s.context * 3 * s.width +
                           task % s.heads * (s.width / s.heads);
    const auto bytes = [](const Tensor& x, int64_t element) {
      return static_cast<const std::byte*>(x.raw()) + element * dtype_size(x.dtype());
    };
    const Head head{s, bytes(b.wide, offset), bytes(b.probabilities, thread * tile_elements),
                    b.scores.data<float>() + thread * tile_elements,
                    b.sums.data<float>() + thread * b.sums.size(1)};
    head.products(backward);
  }
}

double median_ms(int repeats, const std::function<void()>& body) {
  body();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    const auto end = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::milli>(end - begin).count());
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

double gigaflops(const Sizes& s) {
  double attention = 0;
  for (int64_t first = 0; first < s.context; first += cpu::attention_tile_rows) {
    const int64_t rows = std::min(cpu::attention_tile_rows, s.context - first);
    attention += 7.0 * 2.0 * static_cast<double>(rows * (first + rows) * s.width * s.batch);
  }
  const double linears = 6.0 * 12.0 * static_cast<double>(s.rows() * s.width * s.width);
  const double head = 6.0 * static_cast<double>(s.rows() * s.width * s.vocab);
  return (static_cast<double>(s.layers) * (attention + linears) + head) * 1e-9;
}

void measure(const Sizes& s) {
  set_thread_count(s.threads);
  const Buffers b(s);
  const Activation narrow{b.narrow, b.narrow_out}, wide{b.wide, b.wide_out};
  const auto linears = [&] {
    for (const auto& [weight, gradient] : b.linears) {
      linear_products(s.rows(), weight, gradient, true, weight.size(0) > s.width ? wide : narrow,
                      weight.size(1) > s.width ? wide : narrow);
    }
  };
  const auto attention = [&] {
    for (int64_t layer = 0; layer < s.layers; ++layer) {
      all_attention_products(s, b, false);
      all_attention_products(s, b, true);
    }
  };
  const auto head = [&] {
    linear_products(s.rows(), b.head, b.head_gradient, false, narrow, {b.logits, b.logits_out});
  };
  const double linear_ms = median_ms(s.repeats, linears);
  const double attention_ms = median_ms(s.repeats, attention);
  const double head_ms = median_ms(s.repeats, head);
  const double total_ms = median_ms(s.repeats, [&] {
    linears();
    attention();
    head();
  });
  fmt::print(
      "{{\"bench\":\"matmul_ceiling\",\"layers\":{},\"heads\":{},\"width\":{},\"context\":{},"
      "\"batch\":{},\"vocab\":{},\"dtype\":\"{}\",\"threads\":{},\"total_ms\":{:.3f},"
      "\"linear_ms\":{:.3f},\"attention_ms\":{:.3f},\"head_ms\":{:.3f},\"gflops_per_s\":{:.1f}}}\n",
      s.layers, s.heads, s.width, s.context, s.batch, s.vocab, s.dtype_name, s.threads, total_ms,
      linear_ms, attention_ms, head_ms, gigaflops(s) / total_ms * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  Sizes s;
  CLI::App app("Times the matrix products of a GPT training step");
  app.add_option("--layers", s.layers)->check(CLI::PositiveNumber);
  app.add_option("--heads", s.heads)->check(CLI::PositiveNumber);
  app.add_option("--width", s.width)->check(CLI::PositiveNumber);
  app.add_option("--context", s.context)->check(CLI::PositiveNumber);
  app.add_option("--batch", s.batch)->check(CLI::PositiveNumber);
  app.add_option("--vocab", s.vocab)->check(CLI::PositiveNumber);
  app.add_option("--dtype", s.dtype_name)->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--threads", s.threads)->check(CLI::PositiveNumber);
  app.add_option("--repeats", s.repeats)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    measure(s);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_matmul_ceiling: {}\n", error.what());
    return 1;
  }
  return 0;
}
