#include "models/gpt_memory.h"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "core/context.h"
#include "core/gemm.h"
#include "core/ops/causal_attention.h"
#include "core/ops/linear_cross_entropy.h"

namespace tessera::models {
namespace {

/// What is alive, by name, and the most that ever was.
class Alive {
 public:
  void begin(const std::string& name, int64_t bytes) {
    TESSERA_CHECK(bytes_.emplace(name, bytes).second, "gpt memory: '{}' begins twice", name);
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  template <class... Names>
  void end(const Names&... names) {
    (end_one(names), ...);
  }
  /// `name` ends and `next` is called so from now on.
  void replace(const std::string& name, const std::string& next) {
    end_one(name);
    bytes_[name] = bytes_.at(next);
    bytes_.erase(next);
  }
  int64_t peak() const { return peak_; }

 private:
  void end_one(const std::string& name) {
    const auto entry = bytes_.find(name);
    TESSERA_CHECK(entry != bytes_.end(), "gpt memory: '{}' ends before it began", name);
    now_ -= entry->second;
    bytes_.erase(entry);
  }

  std::unordered_map<std::string, int64_t> bytes_;
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

/// A step's sizes in bytes, by the letters of models/gpt.h and nn/transformer.h.
struct Sizes {
  GptConfig config;
  DType dtype;
  int64_t sequences, tokens;
  int64_t n = sequences * tokens;                        // rows
  int64_t element = dtype_size(dtype);
  int64_t row = 4 * n;                                   // an f32 a row
  int64_t x = n * config.width * element;                // (B, T, C)
  int64_t logsumexp = row * config.heads;                // of attention
  int64_t chunk = std::min(n, ops::logits_chunk_rows(config.vocab));
  bool keeps_logits = chunk == n;
  int64_t logits = 4 * chunk * config.vocab;
  bool dropout = config.dropout > 0;
};

constexpr int64_t sum_block = 4096;  // losses that are summed at a time

/// The peak of scratch memory, operation by operation.
class Workspace {
 public:
  explicit Workspace(const Sizes& sizes) : s_(sizes), c_(sizes.config.width) {}

  void forward(bool recorded) {
    linear_forward(c_, 3 * c_);
    use(attention(false));
    linear_forward(c_, c_);
    linear_forward(c_, 4 * c_);
    linear_forward(4 * c_, c_);
    const int64_t logits = recorded && s_.keeps_logits ? 0 : s_.logits;
    use(logits + s_.row + std::max(head_logits(), mean()));
  }

  void backward() {
    head_backward();
    norm_backward();
    linear_backward(c_, 3 * c_, norm_again(), 0);
    use(attention(true));
    linear_backward(c_, c_, 0, 0);
    linear_backward(c_, 4 * c_, norm_again(), 4 * s_.x);   // GELU's gradient
    linear_backward(4 * c_, c_, 4 * s_.x, 0);              // GELU computed again
    use(4 * (s_.config.vocab + 1 + s_.n));                 // the order of tokens in the table
  }

  int64_t peak() const { return peak_; }

 private:
  void use(int64_t bytes) { peak_ = std::max(peak_, bytes); }
  int64_t product(cpu::GemmArgs args) const {
    args.dtype = s_.dtype;
    return cpu::gemm_workspace_bytes(args);
  }
  // Of each thread: tiles of scores, in f32 and, where that differs, in the dtype; the output's
  // tile and the rows' maxima and sums; in backward a second pair of tiles, and dk and dv; and what
  // a product takes.
  int64_t attention(bool backward) const {
    const int64_t tile = cpu::attention_tile_rows;
    const int64_t head = c_ / s_.config.heads;
    const int64_t tiles = (s_.tokens + tile - 1) / tile;
    const int64_t scores = tile * std::min(s_.tokens, cpu::attention_block_keys);
    const int64_t pair = scores * (s_.dtype == DType::f32 ? 4 : 4 + s_.element);
    const int64_t pieces = s_.sequences * s_.config.heads * (backward ? 1 : tiles);
    const int64_t cost = (backward ? s_.tokens : tile) * s_.tokens * head;
    const int64_t team = std::min<int64_t>(thread_count(), pieces);
    const int64_t threads = worth_a_team(pieces, cost) ? team : 1;
    const int64_t sums = backward ? 2 * tiles * tile * head * 4 : 0;
    return threads * ((backward ? 2 : 1) * pair + tile * (head + 2) * 4 + sums +
                      attention_product(backward));
  }
  // The most that one product of a tile's rows and a block's keys takes, in whole cache lines.
  int64_t attention_product(bool backward) const {
    const int64_t head = c_ / s_.config.heads;
    int64_t most = 0;
    const auto on_one_thread = [&](cpu::GemmArgs args) {
      args.threads = 1;
      most = std::max(most, (product(args) + 63) / 64 * 64);
    };
    for (int64_t row = 0; row < s_.tokens; row += cpu::attention_tile_rows) {
      const int64_t end = std::min(s_.tokens, row + cpu::attention_tile_rows);
      for (int64_t key = 0; key < end; key += cpu::attention_block_keys) {
        const int64_t rows = end - row;
        const int64_t keys = std::min(end - key, cpu::attention_block_keys);
        // Rows of q, k and v lie 3C apart, those of dy C.
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

  // Weights are stored [in, out].
  void linear_forward(int64_t in, int64_t out) {
    static constexpr float any = 0;
    use(product({.m = s_.n, .n = out, .k = in, .a = {nullptr, in}, .b = {nullptr, out},
                 .c = {nullptr, out}, .bias = &any, .c_dtype = s_.dtype}));
  }
  // `input` is computed again, `gradient` is that of what goes into the activation.
  void linear_backward(int64_t in, int64_t out, int64_t input, int64_t gradient) {
    const int64_t dx = product({.m = s_.n, .n = in, .k = out, .a = {nullptr, out},
                                .b = {nullptr, 1, out}, .c = {nullptr, in}, .c_dtype = s_.dtype});
    const int64_t dweight =
        product({.m = in, .n = out, .k = s_.n, .a = {nullptr, 1, in}, .b = {nullptr, out},
                 .c = {nullptr, out}, .c_dtype = s_.dtype});
    use(input + gradient + std::max(dx, dweight));
  }
  // A norm that is computed again needs room for its statistics too, before other things begin.
  int64_t norm_again() {
    use(s_.x + 2 * s_.row);
    return s_.x;
  }
  // Chunks of at least 16 rows, at most 32 of them, have sums of their own.
  void norm_backward() {
    const int64_t rows = std::max<int64_t>(16, (s_.n + 31) / 32);
    use((s_.n + rows - 1) / rows * 2 * c_ * 4);
  }
  // Of the losses: an fp64 for every block of them.
  int64_t mean() const { return (s_.n + sum_block - 1) / sum_block * 8; }

  int64_t head_logits() const {
    return product({.m = s_.chunk, .n = s_.config.vocab, .k = c_, .a = {nullptr, c_},
                    .b = {nullptr, 1, c_}, .c = {nullptr, s_.config.vocab}});
  }
  void head_backward() {
    const int64_t v = s_.config.vocab;
    const bool wide = s_.dtype == DType::f32;
    const bool several = s_.chunk < s_.n;
    const DType dweight_dtype = several ? DType::f32 : s_.dtype;
    int64_t held = s_.keeps_logits ? 0 : s_.logits;
    if (!wide) held += s_.chunk * v * s_.element;             // the gradient of the logits
    if (!wide && several) held += 4 * v * c_;                 // the sum over chunks
    int64_t products = s_.keeps_logits ? 0 : head_logits();
    for (const int64_t rows : {s_.chunk, s_.n % s_.chunk == 0 ? s_.chunk : s_.n % s_.chunk}) {
      products = std::max(products, product({.m = rows, .n = c_, .k = v, .a = {nullptr, v},
                                             .b = {nullptr, c_}, .c = {nullptr, c_},
                                             .c_dtype = s_.dtype}));
      for (const bool accumulate : {false, true}) {
        if (accumulate && !several) continue;
        products = std::max(
            products, product({.m = v, .n = c_, .k = rows, .a = {nullptr, 1, v},
                               .b = {nullptr, c_}, .c = {nullptr, c_}, .accumulate = accumulate,
                               .c_dtype = dweight_dtype}));
      }
    }
    use(held + products);
  }

  const Sizes& s_;
  int64_t c_;
  int64_t peak_ = 0;
};

/// The activations, in program order. What belongs to block l is called "l/...".
class Activations {
 public:
  Activations(const Sizes& sizes, bool training) : s_(sizes), dropout_(training && s_.dropout) {
    alive_.begin("tokens", s_.row);
    alive_.begin("targets", s_.row);
    alive_.begin("x", s_.x);
    if (dropout_) dropped("x");
  }

  int64_t peak() const { return alive_.peak(); }

  /// Forward of a block. Where it is recorded, what its backward needs stays.
  void block(int64_t l, bool recorded) {
    norm(l, "ln_1", l > 0 ? "sum_1" : "", recorded);
    begin(l, "qkv", 3 * s_.x);
    begin(l, "attended", s_.x);
    begin(l, "logsumexp", s_.logsumexp);
    if (!recorded) end(l, "logsumexp");
    begin(l, "projected", s_.x);
    if (!recorded) end(l, "qkv", "attended");
    if (dropout_) dropped(of(l, "projected"));
    norm(l, "ln_2", "sum_2", recorded);
    begin(l, "gelu", 4 * s_.x);
    if (recorded) begin(l, "before gelu", 4 * s_.x);
    begin(l, "update", s_.x);
    end(l, "gelu");
    if (dropout_) dropped(of(l, "update"));
    end(l, "ln_1", "projected", "ln_2");
    if (!recorded && l > 0) end(l, "sum_1");
  }

  /// The stream that went into block l: its sum, where no closure has it, and its update.
  void end_input(int64_t l, bool sum) {
    if (l == 0) {
      if (sum) alive_.end("x");
    } else {
      if (sum) end(l - 1, "sum_2");
      end(l - 1, "update");
    }
  }

  void head(bool recorded, bool blocks_recorded) {
    norm(s_.config.layers, "ln_f", "sum_f", recorded);
    end_input(s_.config.layers, !blocks_recorded);
    if (!recorded) end(s_.config.layers, "sum_f");
    alive_.begin("logsumexp of logits", s_.row);
    if (recorded && s_.keeps_logits) alive_.begin("logits", s_.logits);
    alive_.begin("loss", 4);
  }

  void head_backward() {
    const int64_t l = s_.config.layers;
    alive_.begin("d loss", 4);
    alive_.begin("d ln", s_.x);
    alive_.end("logsumexp of logits", "d loss");
    end(l, "ln_f");
    if (s_.keeps_logits) alive_.end("logits");
    alive_.begin("d stream", s_.x);
    end(l, "sum_f", "ln_f statistics");
    alive_.end("d ln");
  }

  void block_backward(int64_t l) {
    sublayer_backward("d gelu", 4 * s_.x);
    alive_.begin("d ln", s_.x);
    end(l, "before gelu");
    alive_.end("d gelu");
    norm_backward(l, "ln_2");
    end(l, "sum_2");
    sublayer_backward("d attended", s_.x);
    alive_.begin("d qkv", 3 * s_.x);
    end(l, "qkv", "attended", "logsumexp");
    alive_.end("d attended");
    alive_.begin("d ln", s_.x);
    alive_.end("d qkv");
    norm_backward(l, "ln_1");  // in the first block it is added to what the residual has brought
    if (l > 0) end(l, "sum_1");
  }

  /// Backward of a block whose forward was not recorded.
  void block_backward_again(int64_t l) {
    block(l, true);
    end(l, "update");
    block_backward(l);
    end_input(l, true);
  }

  void embedding_backward() {
    if (dropout_) dropped("d stream");
    alive_.end("d stream");
  }

 private:
  static std::string of(int64_t l, const std::string& name) {
    return std::to_string(l) + "/" + name;
  }
  void begin(int64_t l, const char* name, int64_t bytes) { alive_.begin(of(l, name), bytes); }
  template <class... Names>
  void end(int64_t l, const Names&... names) {
    (alive_.end(of(l, names)), ...);
  }

  /// Dropout makes a new tensor of one that ends then.
  void dropped(const std::string& name) {
    alive_.begin("dropped", s_.x);
    alive_.replace(name, "dropped");
  }

  void norm(int64_t l, const std::string& name, const char* sum, bool recorded) {
    if (*sum != '\0') begin(l, sum, s_.x);
    alive_.begin(of(l, name), s_.x);
    alive_.begin(of(l, name + " statistics"), 2 * s_.row);
    if (!recorded) end(l, name + " statistics");
  }

  /// Backward of dropout and of the projection into the stream.
  void sublayer_backward(const char* gradient, int64_t bytes) {
    if (dropout_) alive_.begin("d dropped", s_.x);
    alive_.begin(gradient, bytes);
    if (dropout_) alive_.end("d dropped");
  }

  void norm_backward(int64_t l, const std::string& name) {
    alive_.begin("d stream, next", s_.x);
    end(l, name + " statistics");
    alive_.end("d ln");
    alive_.replace("d stream", "d stream, next");
  }

  const Sizes& s_;
  bool dropout_;
  Alive alive_;
};

}  // namespace

GptMemory gpt_training_memory(const GptConfig& config, DType dtype, int64_t sequences,
                              int64_t tokens) {
  const Sizes sizes{config, dtype, sequences, tokens};
  const int64_t layers = config.layers;
  const bool recorded = !config.recompute;
  Activations activations(sizes, true);
  for (int64_t l = 0; l < layers; ++l) {
    activations.block(l, recorded);
    if (recorded && l > 0) activations.end_input(l, false);
  }
  activations.head(true, recorded);
  activations.head_backward();
  for (int64_t l = layers - 1; l >= 0; --l) {
    if (recorded) {
      activations.block_backward(l);
      if (l == 0) activations.end_input(l, true);
    } else {
      activations.block_backward_again(l);
    }
  }
  activations.embedding_backward();
  Workspace workspace(sizes);
  workspace.forward(true);
  workspace.backward();
  return {activations.peak(), workspace.peak()};
}

GptMemory gpt_evaluation_memory(const GptConfig& config, DType dtype, int64_t sequences,
                                int64_t tokens) {
  const Sizes sizes{config, dtype, sequences, tokens};
  Activations activations(sizes, false);
  for (int64_t l = 0; l < config.layers; ++l) {
    activations.block(l, false);
    activations.end_input(l, true);
  }
  activations.head(false, false);
  Workspace workspace(sizes);
  workspace.forward(false);
  return {activations.peak(), workspace.peak()};
}

}  // namespace tessera::models
