#include "models/gpt/gpt_memory.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "core/error.h"
#include "models/gpt/gpt_workspace.h"

namespace tessera::models {
namespace {

/// The tensors that are alive, by name, and the peak of their total bytes.
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
  /// Frees the tensor `name`, and renames the tensor `next` to `name`.
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

/// The part of a transformer block's input that stays alive after the block has read it. The input
/// consists of a residual sum and, except in block 0, an update (nn::ResidualStream).
///   nothing   in evaluation
///   sum       the residual sum, in training without recomputation
///   input     the whole input, in training in which backward recomputes the block
enum class InputKept : uint8_t { nothing, sum, input };

/// Counts the activations of a step. Each function counts the tensors that one part of the step
/// allocates and frees, in program order. Tensors of block l are named "l/...".
class Activations {
 public:
  Activations(const GptSizes& sizes, bool training) : s_(sizes), dropout_(training && s_.dropout) {
    alive_.begin("tokens", s_.row);
    alive_.begin("targets", s_.row);
    alive_.begin("x", s_.x);
    if (dropout_) dropped("x");
  }

  int64_t peak() const { return alive_.peak(); }

  /// Counts the tensors of a block's forward. If the forward is recorded, the tensors that backward
  /// needs stay alive. The block frees its input, except for the part that `kept` names.
  void block(int64_t l, bool recorded, InputKept kept) {
    norm(l, "ln_1", l > 0 ? "sum_1" : "", recorded);
    if (l > 0 && kept != InputKept::input) end_input(l, kept == InputKept::nothing);
    begin(l, "qkv", 3 * s_.x);
    begin(l, "attended", s_.x);
    begin(l, "logsumexp", s_.logsumexp);
    if (!recorded) end(l, "logsumexp");
    begin(l, "projected", s_.x);
    if (!recorded) end(l, "qkv", "attended");
    if (dropout_) dropped(of(l, "projected"));
    end(l, "ln_1");
    norm(l, "ln_2", "sum_2", recorded);
    end(l, "projected");
    if (!recorded && l > 0) end(l, "sum_1");
    if (l == 0 && kept == InputKept::nothing) end_input(l, true);
    begin(l, "gelu", 4 * s_.x);
    if (recorded) begin(l, "before gelu", 4 * s_.x);
    begin(l, "update", s_.x);
    end(l, "gelu");
    if (dropout_) dropped(of(l, "update"));
    end(l, "ln_2");
  }

  /// Frees the input of block l, or of the final norm if l is the number of layers. The input is a
  /// residual stream: a residual sum and, except in block 0, an update. `sum` is false if the
  /// residual sum must stay alive, because a backward closure still needs it.
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
    if (recorded && s_.gradient_in_forward) {
      alive_.begin("d ln", s_.x);
      alive_.begin("d weight", 4 * s_.columns * s_.config.width);
      alive_.begin("loss", 4);
      end(s_.config.layers, "ln_f");
      return;
    }
    alive_.begin("normalizers of logits", 2 * s_.row);
    if (recorded && s_.keeps_logits) alive_.begin("logits", s_.logits);
    alive_.begin("loss", 4);
  }

  void head_backward() {
    const int64_t l = s_.config.layers;
    alive_.begin("d loss", 4);
    if (s_.gradient_in_forward) {
      alive_.end("d weight", "d loss");
    } else {
      alive_.begin("d ln", s_.x);
      alive_.end("normalizers of logits", "d loss");
      end(l, "ln_f");
      if (s_.keeps_logits) alive_.end("logits");
    }
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
    // ln_1's backward also adds the residual stream's gradient to its result. In block 0, autograd
    // does this addition instead, and the memory is the same.
    norm_backward(l, "ln_1");
    if (l > 0) end(l, "sum_1");
  }

  /// Counts the tensors of the backward of a block whose forward was not recorded. Backward
  /// recomputes the forward first.
  void block_backward_again(int64_t l) {
    block(l, true, InputKept::input);
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

  /// Counts the tensors of a dropout. Dropout writes a new tensor. Then dropout's input is freed,
  /// and the new tensor gets the input's name.
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

  /// A sub-layer ends with a projection and dropout. Counts the tensors of their backward.
  /// `gradient` names the gradient of the projection's input, and `bytes` is its size.
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

  const GptSizes& s_;
  bool dropout_;
  Alive alive_;
};

}  // namespace

GptMemory gpt_training_memory(const GptConfig& config, DType dtype, int64_t sequences,
                              int64_t tokens, Device device) {
  const GptSizes sizes{config, dtype, sequences, tokens, device};
  const int64_t layers = config.layers;
  const bool recorded = !config.recompute;
  Activations activations(sizes, true);
  for (int64_t l = 0; l < layers; ++l) {
    activations.block(l, recorded, recorded ? InputKept::sum : InputKept::input);
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
  return {activations.peak(), gpt_workspace(sizes, true)};
}

GptMemory gpt_evaluation_memory(const GptConfig& config, DType dtype, int64_t sequences,
                                int64_t tokens, Device device) {
  const GptSizes sizes{config, dtype, sequences, tokens, device};
  Activations activations(sizes, false);
  for (int64_t l = 0; l < config.layers; ++l) {
    activations.block(l, false, InputKept::nothing);
  }
  activations.head(false, false);
  return {activations.peak(), gpt_workspace(sizes, false)};
}

}  // namespace tessera::models
