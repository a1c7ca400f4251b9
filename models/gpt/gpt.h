// GPT-2: token and position embeddings, transformer blocks, a final norm, and an output head that
// shares its weight with the token table.
//
//   models::Gpt model(models::GptConfig::preset("nano"));
//   Tensor loss = model.loss(tokens, targets);       // i32 (B, T) each -> scalar
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/transformer.h"

namespace tessera::models {

/// Upper limits on the sizes in a GptConfig. They keep the number of parameters within int64.
struct GptLimits {
  static constexpr int64_t layers = int64_t{1} << 14;
  static constexpr int64_t width = int64_t{1} << 20;
  static constexpr int64_t context = int64_t{1} << 24;
  static constexpr int64_t vocab = int64_t{1} << 24;
};

/// The names of the config's members in the errors of GptConfig::validate. A reader of a file gives
/// the file's names.
struct GptNames {
  const char* layers = "layers";
  const char* heads = "heads";
  const char* width = "width";
  const char* context = "context";
  const char* vocab = "vocab";
  const char* epsilon = "the norms' epsilon";
};

struct GptConfig {
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t width = 0;
  int64_t context = 0;
  int64_t vocab = 0;
  float dropout = 0;
  float epsilon = 1e-5f;
  /// Standard deviation of the initial weights. For c_proj it is divided by sqrt(2 * layers).
  float initializer_range = 0.02f;
  /// If true, backward recomputes each block's activations (core/recompute.h). Backward then calls
  /// the model's blocks again, so the model must exist until backward ends.
  bool recompute = false;
  /// The number of rows of logits that the loss computes at a time (chunk_rows of
  /// ops::linear_cross_entropy). 0 chooses a number that suits the device (ops::logits_chunk_rows).
  int64_t loss_chunk_rows = 0;

  /// Returns the preset nano, micro, gpt2, gpt2-medium, gpt2-large or gpt2-xl. For another name,
  /// throws InputError with a list of the presets.
  static GptConfig preset(const std::string& name);
  static std::vector<std::string> preset_names();
  /// Throws InputError if a size is below 1 or beyond GptLimits, if `width` is not divisible by
  /// `heads`, or if dropout, epsilon, initializer_range or loss_chunk_rows is out of range.
  void validate(const GptNames& names = {}) const;
};

class Gpt : public nn::Module {
 public:
  explicit Gpt(const GptConfig& config);

  const GptConfig& config() const { return config_; }

  /// Returns the mean cross-entropy in nats. Tokens and targets are i32 (B, T), T <= context.
  Tensor loss(const Tensor& tokens, const Tensor& targets);
  /// tokens i32 (B, T) -> logits f32 (B, T, V).
  Tensor logits(const Tensor& tokens);
  /// Returns the logits of the token that follows a sequence: tokens i32 (1, T) with T >= 1 ->
  /// logits f32 (1, V).
  Tensor next_logits(const Tensor& tokens);

 private:
  Tensor hidden(const Tensor& tokens);  // (B, T) -> (B, T, C), after the final norm
  Tensor head(const Tensor& rows);      // (..., C) -> f32 (..., V)

  GptConfig config_;
  nn::Embedding wte_;
  nn::Embedding wpe_;
  nn::Dropout dropout_;
  std::vector<std::unique_ptr<nn::TransformerBlock>> blocks_;
  nn::LayerNorm ln_f_;
};

}  // namespace tessera::models
