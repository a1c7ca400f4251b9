// The defaults of a training run: for each preset of a GPT, and as texts for --help.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

namespace tessera::apps {

struct TrainDefaults {
  int64_t steps;
  int64_t global_batch;
  // The size of micro-batches changes the bits of results. So that a run has the same bits on any
  // number of ranks, the default does not depend on this number.
  int64_t micro_batch;
  float lr;
  float min_lr;
  int64_t warmup;
  float beta2;
  int64_t eval_every;
  int64_t bucket_bytes;  // small, so that a model has several buckets to send during backward
  float weight_decay = 0;
};

/// The help's texts for the defaults of a training run, such as "2000" or "0.001; with sgd 0.1".
struct DefaultTexts {
  std::string steps;
  std::string global_batch;
  std::string micro_batch;
  std::string lr;
  std::string min_lr;
  std::string warmup;
  std::string beta2;
  std::string eval_every;
  std::string bucket_bytes;
};

/// Formats `value` as a decimal number, and returns a tenth of this number: 0.001f for 0.01f. The
/// quotient 0.01f / 10 would be 0.0009999999, because 0.01f is a little less than 0.01.
inline float tenth(float value) {
  return static_cast<float>(std::strtod(fmt::format("{}", value).c_str(), nullptr) / 10);
}

inline TrainDefaults train_defaults(const std::string& preset) {
  // nano: nanoGPT's setting for a CPU. Training takes about a minute on two cores.
  if (preset == "nano") return {2000, 12, 6, 1e-3f, 1e-4f, 100, 0.99f, 250, int64_t{1} << 19};
  constexpr int64_t bucket_bytes = int64_t{4} << 20;
  if (preset == "micro") return {5000, 12, 6, 1e-3f, 1e-4f, 100, 0.99f, 250, bucket_bytes};
  // GPT-2's family: half a million tokens a step; learning rates of Brown et al., arXiv:2005.14165.
  TrainDefaults defaults{20000, 480, 4, 6e-4f, 6e-5f, 700, 0.95f, 250, bucket_bytes};
  if (preset == "gpt2-medium") defaults.lr = 3e-4f;
  if (preset == "gpt2-large") defaults.lr = 2.5e-4f;
  if (preset == "gpt2-xl") defaults.lr = 2e-4f;
  defaults.min_lr = defaults.lr / 10;
  return defaults;
}

}  // namespace tessera::apps
