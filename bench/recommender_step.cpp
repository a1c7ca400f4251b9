// Times training steps of matrix factorization on ratings as bench/peers/recommender_step.py does:
// the same sizes, weights and drawn samples, and Adam without decay.
//
//   bench_recommender_step --users 943 --items 1682 --batch 1024 --weights init.safetensors
//
// Prints one JSON object: the losses of all steps and, for the steps after the warm-up, the median
// and least time and the median CPU time. A busy machine lengthens CPU time less than elapsed time.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/console/flags.h"
#include "bench/mixed.h"
#include "core/context.h"
#include "dist/bootstrap.h"
#include "models/recommender/recommender_loss.h"
#include "nn/weights_file.h"
#include "optim/zero_optimizer.h"

namespace {

using namespace tessera;

struct Options {
  models::RecommenderConfig model{.users = 943, .items = 1682, .mean = 3.5f};
  int64_t batch = 1024;
  int64_t steps = 100;
  int64_t warmup = 10;
  int threads = 1;
  float l2 = 0.1f;
  bool sparse = false;
  std::string weights;
};

Options parse(int argc, char** argv) {
  Options options;
  apps::Flags app("Times training steps of matrix factorization", "bench_recommender_step");
  app.add_option("--users", options.model.users);
  app.add_option("--items", options.model.items);
  app.add_option("--factors", options.model.factors);
  app.add_option("--batch", options.batch);
  app.add_option("--steps", options.steps);
  app.add_option("--warmup", options.warmup);
  app.add_option("--threads", options.threads);
  app.add_option("--l2", options.l2, "weight of the squares of the rows that are read");
  app.add_flag("--sparse", options.sparse, "row-sparse tables");
  app.add_option("--weights", options.weights, "safetensors, as the peer writes them");
  const std::string help = app.parse(argc, argv);
  if (!help.empty()) {
    fmt::print("{}", help);
    std::exit(0);
  }
  if (options.steps < 1) fail_input("--steps {}, expected at least 1", options.steps);
  return options;
}

int32_t drawn(uint32_t number, int64_t below) {
  return static_cast<int32_t>(uint64_t{bench::mixed(number)} * static_cast<uint64_t>(below) >> 32);
}

struct Samples {
  models::RecommenderInput input;
  Tensor ratings;
};

Samples samples_of(const Options& options, int64_t step) {
  std::vector<int32_t> users;
  std::vector<int32_t> items;
  std::vector<float> ratings;
  for (int64_t i = 0; i < options.batch; ++i) {
    const auto number = static_cast<uint32_t>(3 * (step * options.batch + i));
    users.push_back(drawn(number, options.model.users));
    items.push_back(drawn(number + 1, options.model.items));
    ratings.push_back(static_cast<float>(1 + drawn(number + 2, 5)));
  }
  return {{.users = Tensor::from({options.batch}, users),
           .items = Tensor::from({options.batch, 1}, items),
           .penalized = options.l2 > 0},
          Tensor::from({options.batch, 1}, ratings)};
}

int run(int argc, char** argv, dist::World& world) {
  const Options options = parse(argc, argv);
  TESSERA_CHECK(world.size == 1, "bench_recommender_step: {} ranks, expected one", world.size);
  set_thread_count(options.threads);
  models::RecommenderConfig config = options.model;
  if (options.sparse) {
    config.distinct = {.users = std::min(config.users, options.batch),
                       .items = std::min(config.items, options.batch)};
  }
  const auto model = models::recommender(config);
  optim::ZeroOptimizer optimizer(*model, optim::Adam{.learning_rate = 5e-3f}, world, {});
  if (!options.weights.empty()) {
    const nn::WeightsFile weights(options.weights, *model);
    optimizer.set_parameters(weights.source());
  }
  std::vector<double> ms;
  std::vector<double> cpu_ms;
  std::vector<float> losses;
  const Batch batch{.global = options.batch, .micro = options.batch};
  for (int64_t step = 0; step < options.warmup + options.steps; ++step) {
    const Samples samples = samples_of(options, step);
    const std::clock_t cpu_begin = std::clock();
    const auto begin = std::chrono::steady_clock::now();
    const optim::StepReport report = optimizer.step(step, batch, [&](const MicroBatch&) {
      return models::recommender_loss(model->score(samples.input), samples.ratings,
                                      models::RecommenderObjective::rating, options.l2);
    });
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    losses.push_back(report.loss);
    if (step < options.warmup) continue;
    ms.push_back(time.count());
    cpu_ms.push_back(static_cast<double>(std::clock() - cpu_begin) * 1e3 / CLOCKS_PER_SEC);
  }
  std::sort(ms.begin(), ms.end());
  std::sort(cpu_ms.begin(), cpu_ms.end());
  fmt::print(R"({{"median_ms":{:.4f},"min_ms":{:.4f},"cpu_ms":{:.4f},"losses":[{}]}})"
             "\n",
             ms[ms.size() / 2], ms.front(), cpu_ms[cpu_ms.size() / 2], fmt::join(losses, ","));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::dist::run(argc, argv,
                            [&](tessera::dist::World& world) { return run(argc, argv, world); });
}
