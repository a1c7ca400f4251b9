// Tests that a saved and resumed run computes the same bits as an uninterrupted run, even if it
// resumes in another layout (number of ranks, ZeRO stage, buckets). The digest of a checkpoint must
// not depend on the layout of the run that wrote the checkpoint. Further tests: checkpoints that
// are written while steps go on, signals that come before the first step, a checkpoint of version
// 0.1.0, refused checkpoints, and failed writes.
#include <signal.h>

#include <filesystem>
#include <fstream>

#include "core/block_digest.h"
#include "core/error.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/shared_folder.h"
#include "tests/support/tiny_training.h"
#include "tests/support/tiny_vision.h"
#include "train/checkpoint/run_checkpoints.h"

namespace tessera::test {
namespace {

constexpr int64_t all_steps = 6;
constexpr int64_t saved_step = 3;

struct Layout {
  dist::World world;
  int stage = 0;
  int64_t bucket_bytes = 6000;
};

/// A model and its optimizer in a layout. A Job can be trained, saved and resumed.
template <class Model, class Run>
class Job {
 public:
  Job(const Run& run, const Layout& layout,
      const std::optional<optim::LossScaling>& scaling = std::nullopt)
      : layout_(layout), model_(make(run)), training_(tiny_training(run, *model_)) {
    optimizer_ = std::make_unique<optim::ZeroOptimizer>(
        *model_, training_.rule, layout.world,
        optim::ZeroOptions{.stage = layout.stage,
                           .bucket_bytes = layout.bucket_bytes,
                           .clip = 0.5f,
                           .seed = 3,
                           .loss_scaling = scaling});
  }

  void train(int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) train_step(*optimizer_, training_, step, result_);
  }
  BlockDigest save(const std::string& folder, int64_t step) {
    return train::save_checkpoint(folder, *optimizer_, layout_.world, {.step = step});
  }
  int64_t restore(const std::string& folder) {
    const auto found = train::find_checkpoint(folder, layout_.world);
    REQUIRE(found != nullptr);
    train::restore_checkpoint(*found, *optimizer_);
    return found->manifest().step;
  }
  optim::ZeroOptimizer& optimizer() { return *optimizer_; }
  /// Returns the notes of the last step: every bit that at least one rank passed to
  /// ZeroOptimizer::set_notes.
  uint8_t notes() const { return result_.notes; }
  TrainingResult result() {
    result_.weights = weights_of(*optimizer_);
    return result_;
  }

 protected:
  Training& training() { return training_; }

 private:
  static std::unique_ptr<Model> make(const Run& run) {
    auto model = std::make_unique<Model>(run.model);
    model->to(run.dtype);
    return model;
  }

  Layout layout_;
  std::unique_ptr<Model> model_;
  Training training_;
  TrainingResult result_;
  std::unique_ptr<optim::ZeroOptimizer> optimizer_;
};
using GptJob = Job<models::Gpt, TinyRun>;
using VisionJob = Job<models::ResNet, TinyVision>;

/// A GPT in f16 whose gradients overflow in the second step. After saved_step steps, its loss scale
/// is not the initial one, has had one good step since, and only two steps have updated weights.
class OverflowingJob : public GptJob {
 public:
  OverflowingJob(const TinyRun& run, const Layout& layout)
      : GptJob(run, layout, optim::LossScaling{.initial = 4096, .growth_interval = 2}) {
    training().loss = [loss = training().loss](const MicroBatch& micro) {
      return ops::scale(loss(micro), micro.step == 1 ? 1e20f : 1.0f);
    };
  }
};

TrainingResult tail(TrainingResult result, int64_t from) {
  const auto cut = [from](auto& list) { list.erase(list.begin(), list.begin() + from); };
  cut(result.losses);
  cut(result.grad_norms);
  cut(result.loss_scales);
  cut(result.skipped);
  return result;
}

/// Saves in the layout `writer` and resumes in the layout `reader`. For comparison, every rank also
/// trains the whole run on its own, without interruption.
template <class J, class Run>
void check_resume(const Run& run, const Layout& writer, const Layout& reader) {
  const dist::World job = job_world();
  CAPTURE(writer.world.size, writer.stage, reader.world.size, reader.stage, dtype_name(run.dtype));
  J whole(run, {lone_world(), 0});
  whole.train(0, all_steps);
  const TrainingResult expected = tail(whole.result(), saved_step);

  const SharedFolder folder(job);
  J first(run, writer);
  first.train(0, saved_step);
  // If the writer's layout has one rank, only rank 0 saves.
  const bool alone = writer.world.size < job.size;
  BlockDigest digest;
  if (!alone || job.rank == 0) digest = first.save(folder.path(), saved_step);
  job.communicator->barrier();

  J second(run, reader);
  CHECK(second.restore(folder.path()) == saved_step);
  // Saves the restored state again. The digest must equal that of the first save, because a digest
  // does not depend on the layout.
  const SharedFolder again(job);
  const bool reads_alone = reader.world.size < job.size;
  if (!reads_alone || job.rank == 0) {
    const BlockDigest restored = second.save(again.path(), saved_step);
    if (job.rank == 0) CHECK(restored.text() == digest.text());
  }
  second.train(saved_step, all_steps);
  const TrainingResult result = second.result();
  CHECK(result.losses == expected.losses);
  CHECK(result.grad_norms == expected.grad_norms);
  CHECK(result.loss_scales == expected.loss_scales);
  CHECK(result.skipped == expected.skipped);
  CHECK(result.weights == expected.weights);
}

template <class J, class Run>
void check_both_ways(const Run& run, int stage, int other) {
  check_resume<J>(run, {job_world(), stage}, {lone_world(), other, 64});
  check_resume<J>(run, {lone_world(), other, 1 << 24}, {job_world(), stage});
}

TEST_CASE("a run goes on with the same bits in any layout in f32") {
  const TinyRun run{.batch = {.global = 26, .micro = 2}};
  for (const int stage : {0, 1, 2, 3}) check_both_ways<GptJob>(run, stage, (stage + 1) % 4);
}

TEST_CASE("a run goes on with the same bits in any layout in 16 bits") {
  TinyRun run{.batch = {.global = 26, .micro = 2}};
  run.dtype = DType::bf16;
  check_both_ways<GptJob>(run, 2, 3);
  // With f16, the checkpoint also has the loss scale and its good steps, which must be restored.
  run.dtype = DType::f16;
  OverflowingJob whole(run, {lone_world(), 0});
  whole.train(0, all_steps);
  CHECK(whole.result().loss_scales == std::vector<float>{4096, 4096, 2048, 2048, 4096, 4096});
  check_both_ways<OverflowingJob>(run, 3, 0);
}

TEST_CASE("running statistics of batch norms continue after a resume") {
  check_both_ways<VisionJob>(TinyVision{}, 2, 1);
}

// Trains all steps and writes checkpoints. The calls are those of StepLoop, but notes are set
// before the whole step. Returns the digest of the last checkpoint, on every rank.
std::string train_with_checkpoints(const std::string& folder, bool async, int64_t every) {
  const dist::World world = job_world();
  const TinyRun run{.batch = {.global = 26, .micro = 2}};
  GptJob job(run, {world, 2});
  train::RunLog log("");
  {
    train::RunCheckpoints checkpoints({.folder = folder, .every = every, .keep = 2, .async = async},
                                      world, job.optimizer(), log, {});
    for (int64_t step = 0; step < all_steps; ++step) {
      job.optimizer().set_notes(checkpoints.notes());
      job.train(step, step + 1);
      checkpoints.after_step(step + 1, 0, job.notes());
    }
    checkpoints.finish(all_steps, 0);
  }
  const auto found = train::find_checkpoint(folder, world);
  REQUIRE(found != nullptr);
  CHECK(found->manifest().step == all_steps);
  world.communicator->barrier();
  return found->manifest().digest.text();
}

TEST_CASE("checkpoints written while steps go on equal those written between steps") {
  const dist::World world = job_world();
  const SharedFolder waited(world);
  const SharedFolder meanwhile(world);
  const std::string expected = train_with_checkpoints(waited.path(), false, 1);
  CHECK(train_with_checkpoints(meanwhile.path(), true, 1) == expected);
  CHECK(train::checkpoint_steps(waited.path()) == std::vector<int64_t>{6, 5});
  CHECK(std::ssize(train::checkpoint_steps(meanwhile.path())) <= 2);
}

TEST_CASE("all ranks obey a signal to one rank from before the run after their first step") {
  const dist::World world = job_world();
  const SharedFolder folder(world);
  const train::EarlySignals signals(true);
  if (world.rank == world.size - 1) {
    ::raise(SIGUSR1);
    ::raise(SIGUSR2);
  }
  const TinyRun run{.batch = {.global = 26, .micro = 2}};
  GptJob job(run, {world, 2});
  train::RunLog log("");
  train::RunCheckpoints checkpoints({.folder = folder.path(), .async = false}, world,
                                    job.optimizer(), log, {});
  job.optimizer().set_notes(checkpoints.notes());
  job.train(0, 1);
  CHECK(train::RunCheckpoints::stops(job.notes()));
  checkpoints.after_step(1, 0, job.notes());
  CHECK(train::checkpoint_steps(folder.path()) == std::vector<int64_t>{1});
  world.communicator->barrier();
}

TEST_CASE("failing to write a checkpoint is a warning, and for the last one an error") {
  const dist::World world = job_world();
  const SharedFolder folder(world);
  // A file already has the folder's path, so the folder cannot be made.
  if (world.rank == 0) std::ofstream(folder.path()) << "in the way";
  world.communicator->barrier();
  const std::string message =
      message_of<Error>([&] { train_with_checkpoints(folder.path(), true, 2); });
  CHECK(message.find("the checkpoint of step 6 was not written: rank 0: ") != std::string::npos);
}

// Version 0.1.0 wrote tests/fixtures/checkpoints/1/ on two ranks at stage 2, after two steps of
// this run in f16.
const TinyRun golden{.batch = {.global = 6, .micro = 2},
                     .model = {.layers = 1, .heads = 2, .width = 4, .context = 4, .vocab = 9},
                     .dtype = DType::f16};
constexpr const char* golden_digest = "1b619cada1e8783d660c162a50d4d227";

TEST_CASE("a checkpoint in the first format can be read, and its digest is the same") {
  const dist::World world = job_world();
  const auto checkpoint = train::open_checkpoint(fixture("checkpoints/1"), world);
  CHECK(checkpoint->manifest().version == "0.1.0");
  CHECK(checkpoint->manifest().step == 2);
  CHECK(checkpoint->manifest().layout.ranks == 2);
  CHECK(checkpoint->manifest().digest.text() == golden_digest);
  GptJob job(golden, {world, 3});
  train::restore_checkpoint(*checkpoint, job.optimizer());
  const SharedFolder folder(world);
  CHECK(job.save(folder.path(), 2).text() == golden_digest);
  // One element of the token table's first moment must have its known value.
  float value = 0;
  checkpoint->read("wte.weight/exp_avg", 5, std::span(&value, 1));
  CHECK(value == -0.002037990605458617f);
}

// Writes the fixture into the working directory: mpirun -n 2 test_train_mpi "[golden]"
TEST_CASE("the golden checkpoint is written anew", "[.][golden]") {
  const dist::World world = job_world();
  GptJob job(golden, {world, 2});
  job.train(0, 2);
  job.save("golden", 2);
}

TEST_CASE("every rank refuses a damaged checkpoint, and takes the one before") {
  const dist::World world = job_world();
  const SharedFolder folder(world);
  const TinyRun run{.batch = {.global = 26, .micro = 2}};
  GptJob job(run, {world, 2});
  job.train(0, 1);
  const BlockDigest first = job.save(folder.path(), 1);
  job.train(1, 2);
  job.save(folder.path(), 2);
  const auto damage = [&](const std::string& name, int64_t at) {
    const auto path = std::filesystem::path(folder.path()) / train::checkpoint_name(2) / name;
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  };
  const std::string shard = train::shard_name(world.size - 1, world.size);
  for (const auto& [name, at] : {std::pair<std::string, int64_t>{shard, 100'000'000},
                                 {shard, 20},
                                 {train::manifest_name, 60}}) {
    if (world.rank == 0) {
      const auto path = std::filesystem::path(folder.path()) / train::checkpoint_name(2) / name;
      damage(name, std::min(at, static_cast<int64_t>(std::filesystem::file_size(path)) - 1));
    }
    world.communicator->barrier();
    const auto found = train::find_checkpoint(folder.path(), world);
    REQUIRE(found != nullptr);
    CHECK(found->manifest().step == 1);
    CHECK(found->manifest().digest == first);
    world.communicator->barrier();
    if (world.rank == 0) {
      const auto path = std::filesystem::path(folder.path()) / train::checkpoint_name(2) / name;
      damage(name, std::min(at, static_cast<int64_t>(std::filesystem::file_size(path)) - 1));
    }
    world.communicator->barrier();
    CHECK(train::find_checkpoint(folder.path(), world)->manifest().step == 2);
    world.communicator->barrier();
  }
  const std::string path =
      (std::filesystem::path(folder.path()) / train::checkpoint_name(1)).string();
  world.communicator->barrier();
  if (world.rank == 0) std::filesystem::remove(std::filesystem::path(path) / shard);
  world.communicator->barrier();
  CHECK(message_of<InputError>([&] { train::open_checkpoint(path, world); }).find(shard) !=
        std::string::npos);
}

TEST_CASE("a folder of checkpoints that cannot be read is an error on every rank") {
  const dist::World world = job_world();
  const SharedFolder folder(world);
  const std::string file = (std::filesystem::path(folder.path()) / "file").string();
  if (world.rank == 0) {
    std::filesystem::create_directories(folder.path());
    std::ofstream(file) << "no folder";
  }
  world.communicator->barrier();
  CHECK(message_of<InputError>([&] {
          train::find_checkpoint(file, world);
        }).find("file: cannot be read") != std::string::npos);
  // Checks that no rank still waits in a collective of find_checkpoint. If a rank did, this barrier
  // would throw over MPI, because the communicator detects that ranks make different calls.
  world.communicator->barrier();
}

TEST_CASE("a checkpoint of another model or rule is refused before anything changes") {
  const dist::World world = job_world();
  const SharedFolder folder(world);
  TinyRun run{.batch = {.global = 26, .micro = 2}};
  GptJob job(run, {world, 2});
  job.train(0, 1);
  job.save(folder.path(), 1);
  const auto found = train::find_checkpoint(folder.path(), world);
  // For SGD without momentum, the checkpoint lacks nothing, but has more than the run.
  for (const auto& [momentum, expected] :
       {std::pair{0.0f, "/exp_avg\", which the run does not have"},
        {0.9f, "/momentum_buffer, which the run has; expected the optimizer and precision"}}) {
    models::Gpt model(run.model);
    optim::ZeroOptimizer optimizer(model, optim::Sgd{.momentum = momentum}, world, {.stage = 2});
    const Weights initial = weights_of(optimizer);
    CHECK(message_of<InputError>([&] {
            train::restore_checkpoint(*found, optimizer);
          }).find(expected) != std::string::npos);
    CHECK(weights_of(optimizer) == initial);
  }
  run.model.layers = 1;
  GptJob shallow(run, {world, 2});
  CHECK(message_of<InputError>([&] {
          train::restore_checkpoint(*found, shallow.optimizer());
        }).find("it has \"h.1.") != std::string::npos);
  run.model.layers = 2;
  run.model.width = 40;
  GptJob wide(run, {world, 2});
  const Weights before = weights_of(wide.optimizer());
  CHECK(message_of<InputError>([&] {
          train::restore_checkpoint(*found, wide.optimizer());
        }).find("wte.weight/value is f32 [37, 20], expected f32 [37, 40] as in the run") !=
        std::string::npos);
  CHECK(weights_of(wide.optimizer()) == before);
}

TEST_CASE("if one rank cannot write, there is no new checkpoint, and the one before stays") {
  const dist::World world = job_world();
  const SharedFolder folder(world);
  const TinyRun run{.batch = {.global = 26, .micro = 2}};
  GptJob job(run, {world, 2});
  job.train(0, 1);
  job.save(folder.path(), 1);
  // A folder already has the name of the last rank's shard, so that rank cannot write its shard.
  const std::string shard = train::shard_name(world.size - 1, world.size);
  if (world.rank == 0) {
    std::filesystem::create_directories(
        std::filesystem::path(train::partial_folder(folder.path(), 2)) / shard / "in the way");
  }
  world.communicator->barrier();
  const std::string message = message_of<Error>([&] { job.save(folder.path(), 2); });
  CHECK(message.find(fmt::format("rank {}: ", world.size - 1)) != std::string::npos);
  world.communicator->barrier();
  CHECK(train::checkpoint_steps(folder.path()) == std::vector<int64_t>{1});
  CHECK_FALSE(std::filesystem::exists(train::partial_folder(folder.path(), 2)));
  CHECK(train::find_checkpoint(folder.path(), world)->manifest().step == 1);
}

}  // namespace
}  // namespace tessera::test
