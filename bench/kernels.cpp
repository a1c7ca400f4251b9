// Measures how fast the operations of a GPT step run on one device. Also measures a large matrix
// product and a large copy, whose rates bound those of the other operations.
//
//   bench_kernels --device cuda
//   bench_kernels --device cuda --tiny     small sizes: a second on an emulated GPU (docs/cuda.md)
//   bench_kernels --only cross-entropy     one group of operations
//
// Prints one JSON object with a row for each operation. ms is the median time of a call over
// samples; a sample is a loop of calls that ends with waiting for the device. tflops_per_s counts
// the FLOPs of matrix products; for attention, only the half that the causal mask leaves. gb_per_s
// counts a tensor's bytes once if it must be read, and once more if it must be written. The comment
// at each operation names the counted tensors. Tensors that are too small to matter are left out.
//
// B batch, T tokens of a sequence, C channels, D channels of an attention head, R rows, V
// vocabulary.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/cli/command_line.h"
#include "apps/comm_bench/comm_bandwidth.h"
#include "core/context.h"
#include "core/cuda.h"
#include "core/ops.h"
#include "core/ops/causal_attention.h"
#include "core/ops/copy.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/fill.h"
#include "core/ops/layer_norm.h"
#include "core/ops/linear_cross_entropy.h"
#include "core/ops/matmul.h"
#include "core/ops/residual_layer_norm.h"
#include "core/random.h"
#include "core/text/json_line.h"
#include "dist/device_choice.h"
#include "optim/kernels/update.h"

namespace {

using namespace tessera;

struct Sizes {
  int64_t product = 8192;      // side of the square matrices
  int64_t tokens = 16384;      // B * T of attention
  int64_t width = 2048;        // C of attention
  std::vector<int64_t> contexts = {1024, 4096};
  int64_t norm_rows = 131072, norm_width = 768;
  int64_t loss_rows = 16384, vocab = 50257, loss_width = 768;
  int64_t parameters = 124439808;
  int64_t copied = int64_t{1} << 28;  // elements of f32
};

const Sizes tiny_sizes{.product = 64,
                     .tokens = 128,
                     .width = 256,
                     .contexts = {64, 128},
                     .norm_rows = 8,
                     .norm_width = 64,
                     .loss_rows = 4,
                     .vocab = 101,
                     .loss_width = 64,
                     .parameters = 512,
                     .copied = 1024};

class Bench {
 public:
  Bench(const Sizes& sizes, int samples, double sample_seconds)
      : sizes_(sizes), samples_(samples), sample_seconds_(sample_seconds) {}

  /// Measures the group of rows of this name, or all groups if the name is empty.
  void run(const std::string& only) {
    for (const auto& [name, group] : groups()) {
      if (only.empty() || only == name) (this->*group)();
    }
  }
  static std::vector<std::string> group_names() {
    std::vector<std::string> names;
    for (const auto& [name, group] : groups()) names.push_back(name);
    return names;
  }

  std::string rows() const { return fmt::format("[{}]", fmt::join(rows_, ",")); }

 private:
  static std::vector<std::pair<std::string, void (Bench::*)()>> groups() {
    return {{"product", &Bench::product},
            {"copy", &Bench::copy},
            {"attention", &Bench::attentions},
            {"layer-norm", &Bench::layer_norm},
            {"head", &Bench::head},
            {"cross-entropy", &Bench::cross_entropy},
            {"adamw", &Bench::adam}};
  }

  Context context() const { return current_context(default_device()); }

  static void wait() {
    if (!default_device().is_cpu()) cuda::synchronize(default_device().index);
  }

  double seconds_of(int64_t calls, const std::function<void()>& body) const {
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) body();
    wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  // The first call loads the kernel; the second one determines how many calls make a sample.
  double measure(const std::function<void()>& body) const {
    seconds_of(1, body);
    const double once = seconds_of(1, body);
    const auto calls = std::clamp(static_cast<int64_t>(sample_seconds_ / once), int64_t{1},
                                  int64_t{1000});
    std::vector<double> samples;
    for (int i = 0; i < samples_; ++i) {
      samples.push_back(seconds_of(calls, body) / static_cast<double>(calls));
    }
    return apps::median(samples);
  }

  void add(const std::string& name, double seconds, const char* unit, double amount) {
    rows_.push_back(
        JsonObject().add("name", name).add("ms", 1e3 * seconds).add(unit, amount / seconds).text());
  }
  void add_rate(const std::string& name, double seconds, double flops) {
    add(name, seconds, "tflops_per_s", 1e-12 * flops);
  }
  void add_bandwidth(const std::string& name, double seconds, int64_t bytes) {
    add(name, seconds, "gb_per_s", 1e-9 * static_cast<double>(bytes));
  }

  // Returns values from -1.7 to 1.7 that repeat after a prime number of elements. Products of zeros
  // would take less power, and run faster, than the products of a model.
  static Tensor values(const Shape& shape, DType dtype = DType::bf16) {
    constexpr size_t period = 65521;
    std::vector<float> some(period);
    RandomStream stream(1, "bench", 0);
    for (float& value : some) value = 3.4f * stream.uniform() - 1.7f;
    std::vector<float> all(static_cast<size_t>(shape.elements()));
    for (size_t i = 0; i < all.size(); ++i) all[i] = some[i % period];
    return ops::convert(Tensor::from<float>(shape, all), dtype);
  }
  static Tensor empty(const Shape& shape, DType dtype = DType::bf16) {
    return Tensor::empty(shape, dtype);
  }

  void product() {
    const int64_t n = sizes_.product;
    const Tensor a = values({n, n}), b = values({n, n}), c = empty({n, n});
    const double seconds = measure([&] { kernels::matmul(context(), c, a, b, MatmulArgs{}); });
    const auto size = static_cast<double>(n);
    add_rate("bf16 product", seconds, 2 * size * size * size);
  }

  void copy() {  // x -> y
    const Tensor x = values({sizes_.copied}, DType::f32);
    const Tensor y = empty({sizes_.copied}, DType::f32);
    add_bandwidth("copy", measure([&] { kernels::copy(context(), y, x); }), 2 * x.bytes());
  }

  void attentions() {
    for (const int64_t context : sizes_.contexts) {
      for (const int64_t head : {64, 128}) attention(context, head);
    }
  }

  void attention(int64_t context_length, int64_t head) {
    const int64_t heads = sizes_.width / head, batch = sizes_.tokens / context_length;
    const Shape shape{batch, context_length, sizes_.width};
    const Tensor qkv = values({batch, context_length, 3 * sizes_.width}), dy = values(shape);
    const Tensor y = empty(shape), dqkv = empty(qkv.shape());
    const Tensor logsumexp = empty({batch, heads, context_length}, DType::f32);
    const auto forward = [&] {
      kernels::attention_forward(context(), y, logsumexp, qkv, heads);
    };
    const auto backward = [&] {
      kernels::attention_backward(context(), dqkv, dy, y, logsumexp, qkv, heads);
    };
    // Forward has two products and backward five. A full product takes 2 * tokens * context * width
    // FLOPs. `product` is the half that the causal mask leaves.
    const double product = static_cast<double>(sizes_.tokens * context_length * sizes_.width);
    const std::string name = fmt::format("attention T={} D={}", context_length, head);
    add_rate(name + " forward", measure(forward), 2 * product);
    add_rate(name + " backward", measure(backward), 5 * product);
    add_rate(name, measure([&] {
               forward();
               backward();
             }),
             7 * product);
  }

  void layer_norm() {
    const int64_t rows = sizes_.norm_rows;
    const Shape shape{rows, sizes_.norm_width};
    const Tensor x = values(shape), residual = values(shape), dy = values(shape);
    const Tensor weight = values({sizes_.norm_width}), bias = values({sizes_.norm_width});
    const Tensor y = empty(shape), sum = empty(shape), dx = empty(shape);
    const Tensor dweight = empty(weight.shape()), dbias = empty(bias.shape());
    const Tensor mean = empty({rows}, DType::f32), rstd = empty({rows}, DType::f32);
    const int64_t statistics = mean.bytes() + rstd.bytes();
    add_bandwidth("layer norm forward",  // x -> y, mean, rstd
                  measure([&] {
                    kernels::layer_norm_forward(context(), y, mean, rstd, x, weight, bias, 1e-5f);
                  }),
                  2 * x.bytes() + statistics);
    add_bandwidth("residual layer norm forward",  // x, residual -> sum, y, mean, rstd
                  measure([&] {
                    kernels::residual_layer_norm_forward(context(), y, sum, mean, rstd, x, residual,
                                                         weight, bias, 1e-5f);
                  }),
                  4 * x.bytes() + statistics);
    add_bandwidth("layer norm backward",  // dy, dsum, x, mean, rstd -> dx
                  measure([&] {
                    kernels::layer_norm_backward(context(), dx, dweight, dbias, dy, residual, x,
                                                 mean, rstd, weight);
                  }),
                  4 * x.bytes() + statistics);
  }

  // Measures the three products of a language model's last layer twice: with V columns of logits,
  // and with V rounded up to the columns that linear_cross_entropy computes on a GPU. The stride of
  // a row of logits is the rounded number in both cases. x is (R, C), weight is (columns, C). The
  // weight's gradient is f32, all other tensors are bf16. Only the FLOPs of V columns are counted.
  void head() {
    const int64_t rows = sizes_.loss_rows, vocab = sizes_.vocab, width = sizes_.loss_width;
    const Tensor x = values({rows, width}), dx = empty(x.shape());
    const double flops = 2.0 * static_cast<double>(rows * vocab * width);
    const int64_t stride = ops::logits_stride(vocab);
    for (const int64_t columns : {vocab, stride}) {
      const Tensor weight = values({columns, width}), dweight = empty(weight.shape(), DType::f32);
      const Tensor logits = empty({rows, stride}), dlogits = values({rows, stride});
      const auto add_product = [&](const char* name, const Tensor& y, const Tensor& a,
                                   const Tensor& b, MatmulArgs args) {
        add_rate(fmt::format("head {}, {} columns", name, columns),
                 measure([&] { kernels::matmul(context(), y, a, b, args); }), flops);
      };
      add_product("logits", logits, x, weight, MatmulArgs{.transpose_b = true});
      add_product("dx", dx, dlogits, weight, MatmulArgs{});
      add_product("dweight", dweight, dlogits, x, MatmulArgs{.transpose_a = true});
    }
  }

  // Reads logits and overwrites them by their gradient. The kernel reads each row twice, but only
  // the first read is counted, because the second is from a cache.
  void cross_entropy() {
    const int64_t rows = sizes_.loss_rows, stride = ops::logits_stride(sizes_.vocab);
    const Tensor logits = values({rows, stride});
    std::vector<int32_t> tokens;
    for (int64_t r = 0; r < rows; ++r) tokens.push_back(static_cast<int32_t>(r % sizes_.vocab));
    const Tensor targets = Tensor::from<int32_t>({rows}, tokens);
    const Tensor losses = empty({rows}, DType::f32);
    add_bandwidth("cross-entropy in place", measure([&] {
                    kernels::cross_entropy_in_place(context(), losses, logits, targets,
                                                    sizes_.vocab, 1.0f / static_cast<float>(rows));
                  }),
                  2 * rows * sizes_.vocab * dtype_size(logits.dtype()));
  }

  void adam() {  // p, g, m, v -> p, m, v
    const int64_t n = (sizes_.parameters + 255) / 256 * 256;
    const Tensor p = values({n}, DType::f32), g = values({n}, DType::f32);
    const Tensor m = empty({n}, DType::f32), v = empty({n}, DType::f32);
    kernels::fill(context(), m, 0.0f);
    kernels::fill(context(), v, 0.0f);
    const std::vector<UpdateSegment> segments{{0, n, 0}};
    const std::vector<UpdateHyper> groups{{.learning_rate = 3e-4f,
                                           .beta1 = 0.9f,
                                           .beta2 = 0.95f,
                                           .epsilon = 1e-8f,
                                           .weight_decay = 0.1f,
                                           .bias_correction1 = 0.1f,
                                           .bias_correction2 = 0.05f}};
    add_bandwidth("AdamW", measure([&] {
                    kernels::adam_update(context(), p, m, v, g,
                                         std::span<const UpdateSegment>(segments),
                                         std::span<const UpdateHyper>(groups));
                  }),
                  7 * p.bytes());
  }

  Sizes sizes_;
  int samples_;
  double sample_seconds_;
  std::vector<std::string> rows_;
};

}  // namespace

int main(int argc, char** argv) {
  std::string device = "auto", only;
  bool tiny = false;
  CLI::App app("Times the operations of a GPT step on one device");
  app.add_option("--device", device)->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  app.add_flag("--tiny", tiny, "small sizes, one call each");
  app.add_option("--only", only, "measures one group")->check(CLI::IsMember(Bench::group_names()));
  CLI11_PARSE(app, argc, argv);
  return apps::run_alone([&] {
    dist::choose_device(device);
    const Sizes sizes = tiny ? tiny_sizes : Sizes{};
    Bench bench(sizes, tiny ? 1 : 7, tiny ? 0 : 0.02);
    bench.run(only);
    const Device used = default_device();
    fmt::print("{}\n", JsonObject()
                           .add("bench", "kernels")
                           .add("device", used.is_cpu() ? "cpu" : cuda::device_name(used.index))
                           .raw("rows", bench.rows())
                           .text());
  });
}
