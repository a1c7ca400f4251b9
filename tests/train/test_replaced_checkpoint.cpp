#include "train/checkpoint/checkpoint.h"

#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/checkpoints.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t step = 7;

/// Writes the checkpoint of `step` with one tensor, whose values are all `value`.
std::string write(const std::string& folder, float value) {
  train::Manifest manifest;
  manifest.step = step;
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

TEST_CASE("a checkpoint of the same step is replaced, and nothing else remains") {
  const TemporaryFolder folder;
  const BlockDigest old = digest_of(write(folder.path("run"), 1));
  const std::string path = write(folder.path("run"), 2);
  CHECK_FALSE(digest_of(path) == old);
  CHECK(names(folder.path("run")) == std::vector{train::checkpoint_name(step)});
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
