// Tests saves of weights during a run, and checkpoints with a limit on the bytes of training state
// that they copy (CheckpointOptions::staging). At every ZeRO stage, the results must have the
// same bits as those of a run without saves and checkpoints. Planned bytes must equal measured
// bytes. The file with the best weights must be the same if the run is interrupted and resumed, and
// a resumed run must not overwrite other weights with worse ones.
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/digest.h"
#include "core/error.h"
#include "nn/layers.h"
#include "tests/support/catch.h"
#include "tests/support/shared_folder.h"
#include "tests/support/signal_handler.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_training.h"
#include "tests/support/tiny_vision.h"
#include "train/plan/run_plan.h"
#include "train/step_loop.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t all_steps = 6;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct LoopRun {
  DType dtype = DType::f32;
  int stage = 2;
  bool frozen = false;  // true: the first layer is frozen
  train::LoopOptions loop = {};
  std::vector<double> scores = {};          // the scores of the evaluations, one after each step
  train::WeightSaves::Open open = nullptr;  // nullptr: opens a safetensors file
};

train::LoopOptions six_steps() { return {.steps = all_steps, .batch = {.global = 26, .micro = 2}}; }

struct Outcome {
  Weights weights;
  bool equal = false;      // true: planned and measured bytes are equal
  int64_t checkpoint = 0;  // planned bytes of a checkpoint's copy of the state
  std::string log;
  std::string failed_save;  // StepLoop::failed_save after training
};

template <class Model>
Outcome run_loop(const LoopRun& given, Model& model, const Training& training,
                 const dist::World& world, const std::string& log_path) {
  train::TrainingRun run{
      .rule = training.rule,
      .zero = {.stage = given.stage, .bucket_bytes = 6000, .clip = 0.5f, .seed = 3},
      .loop = given.loop};
  run.loop.batch = training.batch;
  train::set_up_messages(false);
  const auto log = train::begin_run({.log = log_path}, world);
  optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
  if (run.loop.checkpoints.wanted()) {
    if (const auto found = train::find_checkpoint(run.loop.checkpoints.folder, world)) {
      train::restore_checkpoint(*found, optimizer);
      run.loop.first_step = found->manifest().step;
      run.loop.skipped = found->manifest().skipped;
      run.loop.best = found->manifest().best;
    }
  }
  Outcome outcome;
  {
    train::StepLoop loop(run.loop, world, optimizer, *log,
                         {.unit = "samples",
                          .units_per_step = training.batch.global,
                          .forward = training.loss,
                          .evaluate = [&](int64_t done) -> train::StepWork::Evaluation {
                            const double value = given.scores[static_cast<size_t>(done) - 1];
                            return {train::eval_line(done, 1), "", train::Score{.value = value}};
                          },
                          .open_weights =
                              [&](const std::string& path, int64_t updates) {
                                if (given.open) return given.open(path, updates);
                                return train::open_weights(path, model, {.batches = updates});
                              }});
    loop.train();
    outcome.failed_save = loop.failed_save();
    const optim::Plan plan =
        train::plan_run(train::as_it_went(run, loop.count()),
                        static_cast<const nn::Module&>(model), train::place_of(world));
    const train::RankReport report = train::measure(plan, loop.count(), world);
    outcome.equal = report.equal();
    INFO(report.table());
    CHECK(outcome.equal);
    outcome.checkpoint = plan.checkpoint;
  }
  outcome.weights = weights_of(optimizer);
  if (world.rank == 0 && !log_path.empty()) outcome.log = read_file(log_path);
  return outcome;
}

Outcome run_gpt(const LoopRun& given, const std::string& log_path = "") {
  TinyRun tiny{.batch = given.loop.batch, .dtype = given.dtype};
  models::Gpt model(tiny.model);
  model.to(given.dtype);
  for (const auto& named : model.named_parameters()) {
    if (given.frozen && named.name.starts_with("h.0.")) named.parameter.set_trainable(false);
  }
  return run_loop(given, model, tiny_training(tiny, model), fresh_world(), log_path);
}

Outcome run_vision(const LoopRun& given) {
  const TinyVision tiny;
  models::ResNet model(tiny.model);
  return run_loop(given, model, tiny_training(tiny, model), fresh_world(), "");
}

std::string digest_of(const std::string& folder) {
  const auto found = train::find_checkpoint(folder, job_world());
  REQUIRE(found != nullptr);
  CHECK(found->manifest().step == all_steps);
  job_world().communicator->barrier();
  return found->manifest().digest.text();
}

struct Kind {
  DType dtype;
  int stage;
  bool frozen;
};
constexpr Kind kinds[] = {{DType::f32, 0, false},  {DType::f32, 1, true},  {DType::f32, 2, false},
                          {DType::f32, 3, true},   {DType::bf16, 0, true}, {DType::bf16, 1, false},
                          {DType::bf16, 3, false}, {DType::f16, 2, true}};

TEST_CASE("saving weights during a run changes no bits, and is planned") {
  const dist::World world = job_world();
  for (const auto& [dtype, stage, frozen] : kinds) {
    CAPTURE(stage, dtype_name(dtype), frozen);
    const SharedFolder folder(world);
    LoopRun run{.dtype = dtype, .stage = stage, .frozen = frozen, .loop = six_steps()};
    const Weights expected = run_gpt(run).weights;
    run.loop.weights = {.path = folder.path() + "/w.safetensors", .every = 2};
    CHECK(run_gpt(run).weights == expected);
    world.communicator->barrier();
    for (const int64_t step : {2, 4, 6}) {
      CHECK(fs::exists(train::step_weights_path(run.loop.weights.path, step)));
    }
  }
}

TEST_CASE("a save that cannot be written is logged and counted") {
  const dist::World world = job_world();
  const SharedFolder folder(world);
  // A file already has the path of the second save's folder, so this folder cannot be made.
  if (world.rank == 0) {
    fs::create_directories(folder.path());
    std::ofstream(fs::path(folder.path()) / train::checkpoint_name(4)) << "in the way";
  }
  world.communicator->barrier();
  LoopRun run{.stage = 3, .loop = six_steps()};
  run.loop.weights = {.path = folder.path() + "/w.safetensors", .every = 2};
  const std::string log = run_gpt(run, folder.path() + "/log.jsonl").log;
  if (world.rank != 0) return;
  CHECK(log.find(R"({"type":"save","step":2,"path":")") != std::string::npos);
  const size_t failed = log.find(R"({"type":"save","step":4,)");
  REQUIRE(failed != std::string::npos);
  CHECK(log.find(R"("failed":")", failed) < log.find('\n', failed));
  CHECK(log.find(R"({"type":"save","step":6,"path":")") != std::string::npos);
}

// Scores after steps 1 to 6. A lower score is better. Step 1 is the best at first, then step 4.
// Step 6 has the same score as step 4 but does not replace it. NaN and infinity are never the best.
const double nan_value = std::numeric_limits<double>::quiet_NaN();
const double infinite = std::numeric_limits<double>::infinity();
const std::vector<double> scores = {2.5, nan_value, 2.75, 1.5, -infinite, 1.5};

TEST_CASE("the best weights are those of the best evaluation, also of a run that was interrupted") {
  const dist::World world = job_world();
  const SharedFolder whole(world);
  LoopRun run{.stage = 1, .loop = six_steps(), .scores = scores};
  run.loop.eval_every = 1;
  run.loop.weights = {.path = whole.path() + "/w.safetensors", .every = 1, .best = true};
  if (world.rank == 0) fs::create_directories(whole.path());
  world.communicator->barrier();
  const std::string log = run_gpt(run, whole.path() + "/log.jsonl").log;
  const std::string best = read_file(train::best_weights_path(run.loop.weights.path));
  CHECK(best == read_file(train::step_weights_path(run.loop.weights.path, 4)));
  CHECK_FALSE(best.empty());
  if (world.rank == 0) {
    CHECK(log.find(R"("step":1,"val_loss":1,"best":true)") != std::string::npos);
    CHECK(log.find(R"("step":2,"val_loss":1,"best")") == std::string::npos);
    CHECK(log.find(R"("step":6,"val_loss":1,"best")") == std::string::npos);
  }
  // Interrupts one run after step 3, before the best evaluation, and another run after step 4, the
  // best evaluation. Steps 2 and 5 cannot be used: their scores are NaN and infinite, and a run
  // whose last score is not finite fails.
  for (const int64_t stop : {3, 4}) {
    CAPTURE(stop);
    const SharedFolder cut(world);
    LoopRun part = run;
    part.loop.weights = {.path = cut.path() + "/w.safetensors", .best = true};
    part.loop.checkpoints = {.folder = cut.path() + "/checkpoints"};
    part.loop.steps = stop;
    run_gpt(part);
    part.loop.steps = all_steps;
    part.stage = 3;
    run_gpt(part);
    const auto found = train::find_checkpoint(part.loop.checkpoints.folder, world);
    REQUIRE(found != nullptr);
    const std::string path = train::best_weights_path(part.loop.weights.path);
    CHECK(found->manifest().best ==
          train::BestEvaluation{.step = 4, .value = 1.5, .file = digest_of_file(path)});
    CHECK(read_file(path) == best);
    world.communicator->barrier();
  }
}

TEST_CASE("a resumed run overwrites other weights than its best ones only with better ones") {
  const dist::World world = job_world();
  // The evaluation of step 1 is the best before the run is resumed after step 3. Later, only that
  // of step 5 can be better.
  for (const double fifth : {4.0, 0.5}) {
    CAPTURE(fifth);
    const bool better = fifth < 1;
    const SharedFolder folder(world);
    LoopRun run{.stage = 1, .loop = six_steps(), .scores = {1, 2, 3, 5, fifth, 6}};
    run.loop.eval_every = 1;
    run.loop.weights = {.path = folder.path() + "/w.safetensors", .best = true};
    run.loop.checkpoints = {.folder = folder.path() + "/checkpoints"};
    run.loop.steps = 3;
    run_gpt(run);
    const std::string path = train::best_weights_path(run.loop.weights.path);
    std::string other = read_file(path);
    REQUIRE_FALSE(other.empty());
    other.back() ^= 1;
    world.communicator->barrier();  // every rank has read the file before rank 0 changes it
    if (world.rank == 0) std::ofstream(path, std::ios::binary) << other;
    world.communicator->barrier();
    run.loop.steps = all_steps;
    const Outcome resumed = run_gpt(run, folder.path() + "/log.jsonl");
    const auto found = train::find_checkpoint(run.loop.checkpoints.folder, world);
    REQUIRE(found != nullptr);
    REQUIRE(found->manifest().best);
    CHECK(found->manifest().best->step == (better ? 5 : 1));
    CHECK((read_file(path) == other) == !better);
    const std::string lost = "the best weights, of step 1, are lost: " + path + " has other";
    CHECK(resumed.failed_save == (better ? "" : lost + " weights"));
    if (world.rank == 0) {
      const size_t marked = resumed.log.find(R"("step":5,"val_loss":1,"best":true)");
      CHECK((marked != std::string::npos) == better);
      const char* mark = R"("best":true)";
      CHECK(resumed.log.find(mark) == resumed.log.rfind(mark));  // no other evaluation has it
    }
    world.communicator->barrier();
  }
}

TEST_CASE("weights in a folder or another file are saved, and a resume does not compare them") {
  const dist::World world = job_world();
  for (const bool in_folder : {true, false}) {
    CAPTURE(in_folder);
    const SharedFolder folder(world);
    LoopRun run{.stage = 1, .loop = six_steps(), .scores = {1, 2, 3, 5, 4, 6}};
    run.open = [in_folder](const std::string& path, int64_t) -> train::WeightsSink {
      return {.write = [](const nn::NamedParameter&, std::span<const float>) {},
              .commit =
                  [in_folder, path] {
                    if (in_folder) fs::create_directories(path);
                    if (!in_folder) std::ofstream(path + ".bin") << "weights";
                  }};
    };
    run.loop.eval_every = 1;
    run.loop.weights = {.path = folder.path() + "/w", .every = 1, .best = true};
    run.loop.checkpoints = {.folder = folder.path() + "/checkpoints"};
    for (const int64_t steps : {int64_t{3}, all_steps}) {
      CAPTURE(steps);
      run.loop.steps = steps;
      CHECK(run_gpt(run).failed_save.empty());
      const auto found = train::find_checkpoint(run.loop.checkpoints.folder, world);
      REQUIRE(found != nullptr);
      CHECK(found->manifest().best == train::BestEvaluation{.step = 1, .value = 1});
      world.communicator->barrier();
    }
  }
}

TEST_CASE("best weights that cannot be examined are not called missing") {
  const TemporaryFolder folder;
  fs::create_symlink("best", folder.path("best"));
  const dist::World world = lone_world();
  nn::Linear model(4, 4);
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world, {});
  train::RunLog log("");
  const train::BestEvaluation best{.step = 1, .value = 1, .file = FileDigest{}};
  CHECK(message_of<InputError>([&] {
          train::WeightSaves({.path = folder.path("w"), .best = true}, world, optimizer, log,
                             nullptr, best);
        }) == folder.path("best/w") + ": cannot be read: Too many levels of symbolic links");
}

TEST_CASE("limiting its copy does not change a checkpoint, and the limit holds") {
  if (!job_world().communicator->device().is_cpu()) return;  // the last test case is for GPUs
  const dist::World world = job_world();
  for (const auto& [dtype, stage, frozen] : kinds) {
    LoopRun run{.dtype = dtype, .stage = stage, .frozen = frozen, .loop = six_steps()};
    const Weights expected = run_gpt(run).weights;
    std::string digest;
    int64_t all = 0;
    for (const auto& limit :
         {std::optional<int64_t>(), std::optional<int64_t>(0), std::optional<int64_t>(6000)}) {
      CAPTURE(stage, dtype_name(dtype), frozen, limit.value_or(-1));
      const SharedFolder folder(world);
      run.loop.checkpoints = {.folder = folder.path(), .every = 1, .staging = limit};
      const Outcome outcome = run_gpt(run);
      CHECK(outcome.weights == expected);
      if (digest.empty()) digest = digest_of(folder.path());
      CHECK(digest_of(folder.path()) == digest);
      if (!limit) all = outcome.checkpoint;
      // Numbers of updates and the loss scaler's state are always copied, even beyond the limit.
      // Together they have at most 400 bytes.
      if (limit) CHECK(outcome.checkpoint <= std::max<int64_t>(*limit, 400));
      if (limit == 0 && world.rank == 0) CHECK(outcome.checkpoint < all);
    }
  }
}

TEST_CASE("running statistics are always in the copy") {
  if (!job_world().communicator->device().is_cpu()) return;
  const dist::World world = job_world();
  LoopRun run{.loop = six_steps()};
  run.loop.steps = all_steps;
  std::string digest;
  for (const auto& limit : {std::optional<int64_t>(), std::optional<int64_t>(0)}) {
    const SharedFolder folder(world);
    run.loop.checkpoints = {.folder = folder.path(), .every = 2, .staging = limit};
    const int64_t held = run_vision(run).checkpoint;
    if (limit) CHECK((held > 0) == (world.rank == 0));
    if (digest.empty()) digest = digest_of(folder.path());
    CHECK(digest_of(folder.path()) == digest);
  }
}

TEST_CASE("a GPU's state cannot be read in place") {
  if (job_world().communicator->device().is_cpu()) return;
  const dist::World world = job_world();
  const SharedFolder folder(world);
  LoopRun run{.loop = six_steps()};
  run.loop.checkpoints = {.folder = folder.path(), .staging = 0};
  const auto before = handler_of(SIGUSR2);
  CHECK(message_of<InputError>([&] { run_gpt(run); }).find("the state is on the GPU") !=
        std::string::npos);
  CHECK(handler_of(SIGUSR2) == before);  // the refused run does not handle signals
}

}  // namespace
}  // namespace tessera::test
