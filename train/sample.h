// Generates text with a GPT, token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/gpt/gpt.h"

namespace tessera::train {

struct SampleOptions {
  int64_t tokens = 100;
  float temperature = 0.8f;  // 0: always the likeliest token
  int64_t top_k = 0;         // sample from the k likeliest tokens; 0: from all tokens
  uint64_t seed = 0;
};

/// A logit is NaN, so no token can be chosen.
class NanLogits : public Error {
 public:
  using Error::Error;
};

/// Chooses the next token. `logits` has one element per token of the vocabulary. `position` is the
/// number of tokens generated before this one. The choice depends only on the arguments. Throws
/// NanLogits if a logit is NaN.
int32_t choose_token(std::span<const float> logits, const SampleOptions& options, int64_t position);

/// Throws InputError for a prompt that is empty or has a token beyond the vocabulary.
void check_prompt(std::span<const int32_t> prompt, const models::GptConfig& config);

/// Generates options.tokens tokens after `prompt`, and calls `emit` with each of them. The model
/// sees at most the last `context` tokens. Throws InputError as check_prompt does, and NanLogits as
/// choose_token does. If parameters are sharded over ranks, every rank must make the same call.
void sample(models::Gpt& model, std::vector<int32_t> prompt, const SampleOptions& options,
            const std::function<void(int32_t)>& emit);

/// Returns the token that serves as the prompt if the user gives none. If `bytes` is true, this
/// token is the line end, or token 0 if the model's vocabulary lacks the line end. If `bytes` is
/// false, this token is GPT-2's end-of-text if the vocabulary has exactly 50,257 tokens, as GPT-2's
/// has, and token 0 otherwise.
int32_t default_prompt(const models::GptConfig& config, bool bytes);

/// Returns the text of a new token. If `bytes` is true, the text is the byte with the token's
/// number, or "?" for numbers from 256 on. If `bytes` is false, the text is the token's number and
/// a space.
std::string token_text(int32_t token, bool bytes);

}  // namespace tessera::train
