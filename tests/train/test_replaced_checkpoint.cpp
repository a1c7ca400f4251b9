#include "train/checkpoint/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <utility>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/checkpoints.h"
#include "tests/support/forwarding_communicator.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t step = 7;

/// Writes a checkpoint with one tensor, whose values are all `value`.
std::string write(const std::string& folder, float value, int64_t of_step = step) {
  train::Manifest manifest;
  manifest.step = of_step;
  return write_checkpoint(folder, {stated("w", "value", {3}, {value, value, value})},
                          manifest);
}

BlockDigest digest_of(const std::string& path) {
  train::CheckpointReader reader(path);
  reader.verify(0, 1);
  return reader.manifest().digest;
}

/// Returns the names of all files and folders in `folder`.
std::vector<std::string> names(const std::string& folder) {
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    all.push_back(entry.path().filename().string());
  }
  return all;
}

/// Calls a function before each gather. find_checkpoint makes its first gather after it has listed
/// the folder and before it reads a checkpoint.
class Interrupting : public ForwardingCommunicator {
 public:
  explicit Interrupting(std::function<void()> before)
      : ForwardingCommunicator(dist::single_communicator()), before_(std::move(before)) {}
  dist::Work all_gather_host(const Tensor& buffer, dist::Call call) override {
    before_();
    return ForwardingCommunicator::all_gather_host(buffer, call);
  }

 private:
  std::function<void()> before_;
};

TEST_CASE("checkpoints that are removed after the listing are not called damaged") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  std::string newest = write(run, 1);
  int64_t next = step + 1;
  const auto rotate = [&] {
    if (next > step + 2) return;
    fs::rename(newest, newest + ".partial");
    newest = write(run, 1, next++);
  };
  dist::World world{.communicator = std::make_shared<Interrupting>(rotate)};
  const auto found = train::find_checkpoint(run, world);
  REQUIRE(found != nullptr);
  CHECK(found->manifest().step == step + 2);

  const auto remove = [&] { fs::remove_all(newest); };
  world.communicator = std::make_shared<Interrupting>(remove);
  CHECK(train::find_checkpoint(run, world) == nullptr);

  // Removes the newest of two checkpoints. The other one is damaged.
  fs::remove(fs::path(write(run, 1)) / train::manifest_name);
  newest = write(run, 1, step + 1);
  const std::string why = message_of<InputError>([&] { train::find_checkpoint(run, world); });
  CHECK(why.find("is whole: " + run + "/step-000000007/manifest.json") != std::string::npos);
}

TEST_CASE("no older checkpoint is taken while another run replaces the newest one") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  write(run, 1);
  const std::string newest = write(run, 1, step + 1);
  const auto step_found = [&](const std::function<void()>& before) {
    const dist::World world{.communicator = std::make_shared<Interrupting>(before)};
    return train::find_checkpoint(run, world)->manifest().step;
  };
  // The newest checkpoint vanishes after the listing, and is back before the gather with number
  // `back`. If it is back between the read in vain and the question whether it is still there, it
  // counts as damaged, and the older one is found. If it is back later, but before the second
  // listing, it must be found.
  bool damaged = false, found_again = false;
  for (int back = 2; back <= 40; ++back) {
    int gathers = 0;
    const auto replace = [&] {
      ++gathers;
      if (gathers == 1) fs::rename(newest, newest + ".hidden");
      if (gathers == back) fs::rename(newest + ".hidden", newest);
    };
    const int64_t found = step_found(replace);
    damaged = damaged || found == step;
    found_again = found_again || (damaged && found == step + 1);
    if (!fs::exists(newest)) fs::rename(newest + ".hidden", newest);
  }
  CHECK(damaged);
  CHECK(found_again);
}

TEST_CASE("a checkpoint of the same step is replaced, and nothing else remains") {
  const TemporaryFolder folder;
  const BlockDigest old = digest_of(write(folder.path("run"), 1));
  const std::string path = write(folder.path("run"), 2);
  CHECK_FALSE(digest_of(path) == old);
  CHECK(names(folder.path("run")) == std::vector{train::checkpoint_name(step)});
}

TEST_CASE("files and folders of saved weights are no checkpoints, and none replaces them") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  const fs::path saved = fs::path(run) / train::checkpoint_name(step);
  fs::create_directories(saved);
  std::ofstream(saved / "model.safetensors") << "weights";
  const dist::World world{.communicator = dist::single_communicator()};
  CHECK(train::find_checkpoint(run, world) == nullptr);
  CHECK_NOTHROW(train::check_names_are_free(run, step));
  const auto why = message_of<InputError>([&] { train::check_names_are_free(run, step - 1); });
  CHECK(why.find("step-000000007 has files of no checkpoint") != std::string::npos);
  CHECK(message_of<Error>([&] { write(run, 1); }).find("is not replaced") != std::string::npos);
  CHECK(names(saved.string()) == std::vector<std::string>{"model.safetensors"});
  // A checkpoint that has lost its manifest is a damaged one.
  fs::remove(fs::path(write(run, 1, step + 1)) / train::manifest_name);
  CHECK(train::checkpoint_steps(run) == std::vector<int64_t>{step + 1});
  const fs::path file = fs::path(run) / train::checkpoint_name(step + 2);
  std::ofstream(file) << "notes";
  CHECK(train::checkpoint_steps(run) == std::vector<int64_t>{step + 1});
  CHECK(message_of<InputError>([&] {
          train::check_names_are_free(run, step + 1);
        }).find("step-000000009 is a file, but the checkpoint of step 9") != std::string::npos);
  CHECK(message_of<Error>([&] { write(run, 1, step + 2); }).find("is not replaced") !=
        std::string::npos);
  CHECK(fs::is_regular_file(file));
}

TEST_CASE("no checkpoint replaces shards that other files are beside, but no manifest") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  const fs::path damaged = write(run, 1);
  fs::remove(damaged / train::manifest_name);
  std::ofstream(damaged / "notes.txt") << "notes";
  CHECK(train::checkpoint_steps(run) == std::vector<int64_t>{step});  // a damaged checkpoint
  CHECK_THROWS_AS(train::check_names_are_free(run, step - 1), InputError);
  CHECK(message_of<Error>([&] { write(run, 2); }).find("is not replaced") != std::string::npos);
  CHECK(names(damaged.string()).size() == 3);  // two shards and notes.txt
  // Shards alone are a checkpoint that has lost its manifest, and are replaced.
  // Hidden files do not count, because a copy that was interrupted may have left them behind.
  fs::rename(damaged / "notes.txt", damaged / ".notes.txt.Ab12");
  CHECK_NOTHROW(train::check_names_are_free(run, step - 1));
  CHECK_NOTHROW(write(run, 2));
}

TEST_CASE("of the checkpoints of later steps, only damaged ones are removed") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  for (const int64_t at : {5, 6, 7, 8, 9, 10}) write(run, 1, at);
  const auto damage = [&](int64_t at, const char* file) {
    std::fstream(fs::path(run) / train::checkpoint_name(at) / file) << "damaged";
  };
  damage(9, train::manifest_name);
  const std::string shard = train::shard_name(0, 2);
  damage(10, shard.c_str());
  std::set<int64_t> whole_later;
  train::prune_checkpoints(run, 7, 2, whole_later);
  CHECK(train::checkpoint_steps(run) == std::vector<int64_t>{8, 7, 6});
  CHECK(whole_later == std::set<int64_t>{8});
  // Checkpoints that are known to be whole are not read again.
  damage(8, train::manifest_name);
  train::prune_checkpoints(run, 7, 1, whole_later);
  CHECK(train::checkpoint_steps(run) == std::vector<int64_t>{8, 7});
  std::set<int64_t> none;
  train::prune_checkpoints(run, 7, 1, none);
  CHECK(train::checkpoint_steps(run) == std::vector<int64_t>{7});
}

TEST_CASE("the old checkpoint comes back if its replacement was interrupted") {
  const TemporaryFolder folder;
  const std::string path = write(folder.path("run"), 1);
  const BlockDigest old = digest_of(path);
  // Imitates commit_checkpoint, interrupted between its two renames.
  fs::rename(path, path + ".before.partial");
  fs::create_directories(train::partial_folder(folder.path("run"), step));
  train::remove_partial_checkpoints(folder.path("run"));
  CHECK(names(folder.path("run")) == std::vector{train::checkpoint_name(step)});
  CHECK(digest_of(path) == old);
}

TEST_CASE("the old checkpoint is removed if its replacement was complete") {
  const TemporaryFolder folder;
  const std::string path = write(folder.path("run"), 1);
  fs::rename(path, path + ".before.partial");
  const BlockDigest replacement = digest_of(write(folder.path("run"), 2));
  train::remove_partial_checkpoints(folder.path("run"));
  CHECK(names(folder.path("run")) == std::vector{train::checkpoint_name(step)});
  CHECK(digest_of(path) == replacement);
}

}  // namespace
}  // namespace tessera::test
