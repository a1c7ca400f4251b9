// Text from a model, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "models/gpt/gpt.h"

namespace tessera::train {

struct SampleOptions {
  int64_t tokens = 100;
  float temperature = 0.8f;  // 0: always the likeliest token
  int64_t top_k = 0;         // choose among the k likeliest; 0: among all
  uint64_t seed = 0;
};

/// The token that follows, given its logits: a function of (logits, options, position) alone.
int32_t choose_token(std::span<const float> logits, const SampleOptions& options, int64_t position);

/// Throws InputError for a prompt that is empty or has a token beyond the vocabulary.
void check_prompt(std::span<const int32_t> prompt, const models::GptConfig& config);

/// Calls `emit` with each new token. `prompt` is not empty; the model sees the last `context`
/// tokens. Throws InputError for a token beyond the vocabulary. If parameters are sharded over
/// ranks, every rank must make the same call.
void sample(models::Gpt& model, std::vector<int32_t> prompt, const SampleOptions& options,
            const std::function<void(int32_t)>& emit);

/// The token to begin after without a prompt: a line end, GPT-2's end-of-text, or else token 0.
int32_t default_prompt(const models::GptConfig& config, bool bytes);

/// The text of a new token: its byte, or its number and a space.
std::string token_text(int32_t token, bool bytes);

}  // namespace tessera::train
