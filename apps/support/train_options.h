// The command line of train_gpt, complete and checked: what was not given has the preset's default.
#pragma once

#include <cstdint>
#include <string>

#include "apps/support/model_options.h"
#include "models/gpt.h"
#include "optim/zero_optimizer.h"

namespace tessera::apps {

struct TrainOptions {
  std::string data;
  std::string val_data;  // empty: the last 10 % of data

  std::string preset;
  models::GptConfig model;

  int stage = 2;
  int64_t bucket_bytes = 0;
  bool overlap = true;
  optim::Reduction reduction = optim::Reduction::ordered;
  dist::DeviceOptions devices;
  bool graph = false;
  MemoryOptions memory;  // precision, gradient sums, recompute (in `model` too), offload

  int64_t steps = 0;
  optim::Batch batch;
  std::string optimizer;  // adamw, adam, sgd
  float lr = 0;
  float min_lr = 0;
  int64_t warmup = 0;
  float weight_decay = 0;
  float beta1 = 0;  // sgd: momentum
  float beta2 = 0;
  float clip = 0;
  uint64_t seed = 0;
  int threads = 0;  // 0: this host's cores shared among its ranks

  int64_t eval_every = 0;    // 0: never
  int64_t eval_batches = 0;  // 0: the whole validation part
  int64_t sample = 0;

  std::string save;
  std::string init;
  std::string tuned;  // a table that tune wrote
  std::string log;
  std::string trace;
  bool plan = false;
};

/// What a command line asks for: training, or, where `help` is not empty, only to print it.
struct CommandLine {
  TrainOptions options;
  std::string help;
};

/// Throws InputError, one line, for what cannot be done as asked.
CommandLine parse_command_line(int argc, const char* const* argv);

optim::UpdateRule update_rule(const TrainOptions& options);
/// Matrices decay, vectors (biases and norms) do not.
optim::ZeroOptions zero_options(const TrainOptions& options);

/// Threads of this rank: what was asked for, else OMP_NUM_THREADS, else its share of the cores.
int threads_per_rank(int asked, int ranks_on_this_host);

}  // namespace tessera::apps
