// Measures how long blocking checkpoints of a GPT with AdamW's moments take to save and to load.
// bench/peers/checkpoint.py does the same with PyTorch.
//
//   mpirun -n 2 bench_checkpoint --preset gpt2 --folder /dev/shm/run --rounds 5
//
// Rank 0 prints one JSON object: the bytes in the folder, which keeps only the newest checkpoint,
// and the milliseconds of each round's save and load. With --loads, rounds save nothing, and the
// folder stays as it is. Times run from barrier to barrier. A save ends when the checkpoint has its
// final name. A load ends when the checkpoint is verified and the optimizer has its state.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/console/flags.h"
#include "apps/cli/model_options.h"
#include "core/context.h"
#include "dist/bootstrap.h"
#include "models/gpt/gpt.h"
#include "optim/zero_optimizer.h"
#include "train/checkpoint/checkpoint.h"

namespace {

using namespace tessera;

struct Options {
  apps::ModelOptions model;
  std::string folder;
  int64_t rounds = 5;
  int64_t stage = 2;
  bool loads = false;
};

Options parse(int argc, char** argv) {
  Options options;
  apps::Flags app("Times checkpoints", "bench_checkpoint");
  apps::add_model_options(app, options.model);
  app.add_option("--folder", options.folder, "the folder in which checkpoints are written");
  app.add_option("--rounds", options.rounds, "how many rounds are timed");
  app.add_option("--stage", options.stage, "stage of ZeRO");
  app.add_flag("--loads", options.loads,
               "time loading the newest checkpoint in the folder, and write none");
  const std::string help = app.parse(argc, argv);
  if (!help.empty()) {
    fmt::print("{}", help);
    std::exit(0);
  }
  return options;
}

int64_t bytes_in(const std::string& folder) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

template <class Body>
double milliseconds(const dist::World& world, Body&& body) {
  world.communicator->barrier();
  const auto begin = std::chrono::steady_clock::now();
  body();
  world.communicator->barrier();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

int run(int argc, char** argv, dist::World& world) {
  const Options options = parse(argc, argv);
  set_thread_count(1);
  const models::GptConfig config = apps::model_config(options.model);
  models::Gpt model(config);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world,
                                 {.stage = static_cast<int>(options.stage)});
  std::vector<double> saves;
  std::vector<double> loads;
  for (int64_t round = 0; round < options.rounds; ++round) {
    if (!options.loads) {
      saves.push_back(milliseconds(world, [&] {
        train::save_checkpoint(options.folder, optimizer, world, {.step = round});
      }));
    }
    loads.push_back(milliseconds(world, [&] {
      const auto found = train::find_checkpoint(options.folder, world);
      TESSERA_CHECK(found != nullptr, "{}: there is no checkpoint", options.folder);
      train::restore_checkpoint(*found, optimizer);
    }));
    std::set<int64_t> later;
    if (world.rank == 0 && !options.loads) {
      train::prune_checkpoints(options.folder, INT64_MAX, 1, later);
    }
  }
  if (world.rank == 0) {
    fmt::print(R"({{"bytes":{},"save_ms":[{:.1f}],"load_ms":[{:.1f}]}})"
               "\n",
               bytes_in(options.folder), fmt::join(saves, ","), fmt::join(loads, ","));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::dist::run(argc, argv,
                            [&](tessera::dist::World& world) { return run(argc, argv, world); });
}
