#include "models/gpt/gpt_workspace.h"

#include <memory>

#include "core/cpu/gemm.h"
#include "core/ops/causal_attention.h"
#include "core/product.h"
#include "models/kernel_workspace.h"

namespace tessera::models {
namespace {

/// Predicts the workspace of single kernels. Attention and norms differ between the CPU and CUDA.
class Kernels {
 public:
  explicit Kernels(const GptSizes& sizes)
      : s_(sizes), c_(sizes.config.width), context_(current_context(sizes.device)) {}
  virtual ~Kernels() = default;

  int64_t product(ProductArgs args) const {
    args.dtype = s_.dtype;
    return kernels::product_workspace_bytes(context_, args);
  }
  virtual int64_t attention(bool backward) const = 0;
  virtual int64_t norm_gradient() const = 0;
  int64_t bias_gradient(int64_t channels) const {
    return bias_gradient_workspace(context_.device, s_.n, channels);
  }

 protected:
  const GptSizes& s_;
  int64_t c_;
  Context context_;
};

class CpuKernels : public Kernels {
 public:
  using Kernels::Kernels;

  // Each thread has:
  //   - a tile of scores in f32 and, if the dtype is not f32, a second tile in the dtype;
  //   - in backward, as many tiles again for the gradients of the scores;
  //   - a tile of the output (in backward, of dq);
  //   - the maximum and the sum of each row of scores, for the softmax;
  //   - in backward, dk and dv;
  //   - the workspace of a product.
  int64_t attention(bool backward) const override {
    const int64_t tile = cpu::attention_tile_rows;
    const int64_t head = c_ / s_.config.heads;
    const int64_t tiles = pieces(s_.tokens, tile);
    const int64_t scores = tile * std::min(s_.tokens, cpu::attention_block_keys);
    const int64_t pair = scores * (s_.dtype == DType::f32 ? 4 : 4 + s_.element);
    const int64_t tasks = s_.sequences * s_.config.heads * (backward ? 1 : tiles);
    const int64_t rows = tasks * (backward ? s_.tokens : tile);
    const int64_t team = std::min<int64_t>(thread_count(), tasks);
    const int64_t threads = worth_a_team(rows, s_.tokens * head) ? team : 1;
    const int64_t sums = backward ? 2 * tiles * tile * head * 4 : 0;
    return threads * ((backward ? 2 : 1) * pair + tile * (head + 2) * 4 + sums +
                      attention_product(backward));
  }

  // The backward of a norm cuts the rows into at most 32 chunks. All chunks but the last have the
  // same number of rows, at least 16. Each chunk has f32 sums for the gradients of weight and bias.
  int64_t norm_gradient() const override {
    return pieces(s_.n, std::max<int64_t>(16, pieces(s_.n, 32))) * 2 * c_ * 4;
  }

 private:
  // Returns the largest workspace of attention's products, rounded up to whole cache lines. A
  // product has the rows of one tile and at most attention_block_keys keys.
  int64_t attention_product(bool backward) const {
    const int64_t head = c_ / s_.config.heads;
    int64_t most = 0;
    const auto on_one_thread = [&](ProductArgs args) {
      args.dtype = s_.dtype;
      most = std::max(most, pieces(cpu::gemm_workspace_bytes(args, {.threads = 1}), 64) * 64);
    };
    for (int64_t row = 0; row < s_.tokens; row += cpu::attention_tile_rows) {
      const int64_t end = std::min(s_.tokens, row + cpu::attention_tile_rows);
      // From row 2 * attention_block_keys on, the products of every tile but the last have sizes
      // that an earlier tile has had. Visiting all of these tiles would take a time that grows with
      // the square of the tokens.
      if (row >= 2 * cpu::attention_block_keys && end < s_.tokens) continue;
      for (int64_t key = 0; key < end; key += cpu::attention_block_keys) {
        const int64_t rows = end - row;
        const int64_t keys = std::min(end - key, cpu::attention_block_keys);
        // Rows of q, k and v are 3C elements apart, rows of dy are C elements apart.
        on_one_thread({.m = rows, .n = head, .k = keys, .a = {nullptr, keys},      // y, dq
                       .b = {nullptr, 3 * c_}, .c = {nullptr, head}, .accumulate = key > 0});
        for (const int64_t stride : {3 * c_, c_}) {
          if (!backward && stride == c_) continue;
          on_one_thread({.m = rows, .n = keys, .k = head, .a = {nullptr, stride},  // scores, dp
                         .b = {nullptr, 1, 3 * c_}, .c = {nullptr, keys}});
          if (!backward) continue;
          on_one_thread({.m = keys, .n = head, .k = rows, .a = {nullptr, 1, keys},  // dk, dv
                         .b = {nullptr, stride}, .c = {nullptr, head},
                         .accumulate = end < s_.tokens});
        }
      }
    }
    return most;
  }
};

class CudaKernels : public Kernels {
 public:
  using Kernels::Kernels;

  // Backward stores the inner product of y and dy for each row and attention head, in f32. These
  // values take as much memory as the logsumexp that forward keeps.
  int64_t attention(bool backward) const override { return backward ? s_.logsumexp : 0; }

  // The backward of a norm cuts the rows into at most 264 chunks. In all chunks but the last, the
  // number of rows is a multiple of 8. Each chunk has f32 sums for the gradients of weight and
  // bias.
  int64_t norm_gradient() const override {
    return pieces(s_.n, 8 * pieces(s_.n, 8 * 264)) * 2 * c_ * 4;
  }
};

/// Finds the peak workspace of a step. The operations run one after the other, so the peak is the
/// largest workspace of a single operation.
class Workspace {
 public:
  Workspace(const GptSizes& sizes, const Kernels& kernels)
      : s_(sizes), kernels_(kernels), c_(sizes.config.width) {}

  void forward(bool recorded) {
    linear_forward(c_, 3 * c_);
    use(kernels_.attention(false));
    linear_forward(c_, c_);
    linear_forward(c_, 4 * c_);
    linear_forward(4 * c_, c_);
    const int64_t logits = recorded && s_.keeps_logits ? 0 : s_.logits;
    const int64_t gradients = recorded && s_.gradient_in_forward ? head_gradients() : 0;
    use(logits + s_.padded_weight + s_.row +
        std::max({head_logits(), gradients, mean_workspace(s_.n)}));
  }

  void backward() {
    head_backward();
    use(kernels_.norm_gradient());
    linear_backward(c_, 3 * c_, norm_again());
    use(kernels_.attention(true));
    linear_backward(c_, c_, 0);
    linear_backward(c_, 4 * c_, norm_again());
    linear_backward(4 * c_, c_, 4 * s_.x);  // the input is GELU's output, recomputed
    use(4 * (s_.config.vocab + 1 + s_.n));  // the embedding's backward sorts positions by token
  }

  int64_t peak() const { return peak_; }

 private:
  void use(int64_t bytes) { peak_ = std::max(peak_, bytes); }

  // Weights are stored [in, out].
  void linear_forward(int64_t in, int64_t out) {
    use(kernels_.product({.m = s_.n, .n = out, .k = in, .a = {nullptr, in}, .b = {nullptr, out},
                          .c = {nullptr, out}, .bias = at(aligned), .c_dtype = s_.dtype}));
  }
  // `input`: bytes of the layer's input if backward recomputes it, else 0. Only the weight's
  // gradient reads the input. Backward computes this gradient, frees the input, then computes dx.
  void linear_backward(int64_t in, int64_t out, int64_t input) {
    const int64_t dx =
        kernels_.product({.m = s_.n, .n = in, .k = out, .a = {nullptr, out},
                          .b = {nullptr, 1, out}, .c = {nullptr, in}, .c_dtype = s_.dtype});
    const int64_t dweight =
        kernels_.product({.m = in, .n = out, .k = s_.n, .a = {nullptr, 1, in},
                          .b = {nullptr, out}, .c = {nullptr, out}, .c_dtype = s_.dtype});
    use(input + std::max(kernels_.bias_gradient(out), dweight));
    use(dx);
  }
  // Recomputing a norm also takes memory for the norm's statistics. The statistics are freed before
  // the layer's backward begins.
  int64_t norm_again() {
    use(s_.x + 2 * s_.row);
    return s_.x;
  }

  /// The output head processes its rows in chunks. Returns the maximum of body(rows, x) over all
  /// chunks. `rows` is the number of rows in the chunk. `x` is a made-up address with the alignment
  /// of the chunk's first row, because the workspace of a product depends on alignments. For the
  /// first chunk, `x` is null.
  template <class Body>
  int64_t most_of_chunks(Body&& body) const {
    int64_t most = 0;
    for (int64_t begin = 0; begin < s_.n; begin += s_.chunk) {
      most = std::max(most, body(std::min(s_.chunk, s_.n - begin), at(begin * c_ * s_.element)));
    }
    return most;
  }
  int64_t head_logits() const {
    return most_of_chunks([&](int64_t rows, void* x) {
      return kernels_.product({.m = rows, .n = s_.columns, .k = c_, .a = {x, c_},
                               .b = {nullptr, 1, c_}, .c = {nullptr, s_.stride},
                               .c_dtype = s_.logits_dtype});
    });
  }
  // Returns the larger workspace of the two products that read the gradient of the logits.
  int64_t head_gradients() const {
    const int64_t gradient_rows = s_.gradient_in_forward ? s_.columns : s_.config.vocab;
    const bool summed = s_.gradient_in_forward || s_.chunk < s_.n;
    const DType dweight_dtype = summed ? DType::f32 : s_.dtype;
    return most_of_chunks([&](int64_t rows, void* x) {
      const int64_t dx = kernels_.product(
          {.m = rows, .n = c_, .k = s_.columns, .a = {nullptr, s_.stride}, .b = {nullptr, c_},
           .c = {x, c_}, .c_dtype = s_.dtype});
      const int64_t dweight = kernels_.product(
          {.m = gradient_rows, .n = c_, .k = rows, .a = {nullptr, 1, s_.stride}, .b = {x, c_},
           .c = {nullptr, c_}, .accumulate = x != nullptr, .c_dtype = dweight_dtype});
      return std::max(dx, dweight);
    });
  }
  void head_backward() {
    if (s_.gradient_in_forward) return;  // backward only scales the gradients from forward
    const bool wide = s_.dtype == DType::f32;
    const bool several = s_.chunk < s_.n;
    int64_t held = s_.padded_weight + (s_.keeps_logits ? 0 : s_.logits);
    if (!wide) held += s_.chunk * s_.stride * s_.element;      // the gradient of the logits
    if (!wide && several) held += 4 * s_.config.vocab * c_;    // the weight's gradient, in f32
    use(held + std::max(head_gradients(), s_.keeps_logits ? 0 : head_logits()));
  }

  const GptSizes& s_;
  const Kernels& kernels_;
  int64_t c_;
  int64_t peak_ = 0;
};

}  // namespace

std::optional<int64_t> gpt_workspace(const GptSizes& sizes, bool training) {
  const Device device = sizes.device;
  if (!can_be_queried(device)) return std::nullopt;
  std::unique_ptr<Kernels> kernels;
  if (device.is_cpu()) {
    kernels = std::make_unique<CpuKernels>(sizes);
  } else {
    kernels = std::make_unique<CudaKernels>(sizes);
  }
  Workspace workspace(sizes, *kernels);
  workspace.forward(training);
  if (training) workspace.backward();
  return workspace.peak();
}

}  // namespace tessera::models
