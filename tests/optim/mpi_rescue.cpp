// Tests weights that cannot be written to their path, on any number of ranks. They must be written
// to another place. If every place fails, the error must give the reason for each place.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "core/error.h"
#include "nn/layers.h"
#include "nn/weights_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"
#include "train/weights.h"

namespace tessera::test {
namespace {

// Sets a working directory and a folder for temporary files. The destructor restores both.
class Places {
 public:
  Places(const std::string& working, const std::string& temporary)
      : before_(std::filesystem::current_path()) {
    if (const char* const folder = std::getenv("TMPDIR")) temporary_before_ = folder;
    std::filesystem::current_path(working);
    ::setenv("TMPDIR", temporary.c_str(), 1);
  }
  ~Places() {
    std::filesystem::current_path(before_);
    ::unsetenv("TMPDIR");
    if (temporary_before_) ::setenv("TMPDIR", temporary_before_->c_str(), 1);
  }
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;

 private:
  std::filesystem::path before_;
  std::optional<std::string> temporary_before_;
};

std::string bytes_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Returns the path of the only file below a folder. If there is not exactly one file, returns a
// text with the number of files.
std::string only_file(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  return files.size() == 1 ? files.front() : fmt::format("{} files", files.size());
}

TEST_CASE("weights that cannot be written to their path are rescued elsewhere", "[cpu]") {
  const TemporaryFolder folder;
  for (const char* name : {"working", "temporary", "gone"}) {
    std::filesystem::create_directory(folder.path(name));
  }
  dist::World world = job_world();
  nn::Linear model(32, 32);
  optim::ZeroOptimizer optimizer(model, optim::Sgd{.learning_rate = 1}, world,
                                 {.stage = 3, .bucket_bytes = 1024, .seed = 3});
  const std::string expected = folder.path("expected");
  train::save_weights(expected, model, optimizer, world);
  // Only rank 0 throws; the other ranks wait for rank 0 in the barrier.
  const auto failure = [&](const auto& save) {
    std::string text = message_of<Error>([&] {
      save();
      world.communicator->barrier();
    });
    if (world.rank == 0) world.communicator->barrier();
    return text;
  };

  SECTION("in the working directory") {
    const Places places(folder.path("working"), folder.path("temporary"));
    const std::string text = failure(
        [&] { train::save_weights(folder.path("no/w.safetensors"), model, optimizer, world); });
    if (world.rank == 0) {
      const std::string rescued = only_file(folder.path("working"));
      CHECK(text == folder.path("no/w.safetensors") +
                        ": cannot be written: the folder " + folder.path("no") +
                        " does not exist; the weights are in " + rescued + " instead");
      CHECK(std::filesystem::path(rescued).filename() == "w.safetensors");
      CHECK(bytes_of(rescued) == bytes_of(expected));
    }
  }
  SECTION("in the working directory, and every rank goes on") {
    const Places places(folder.path("working"), folder.path("temporary"));
    const std::string path = folder.path("no/w.safetensors");
    const auto open = [&](const std::string& to) { return train::open_weights(to, model); };
    CHECK(train::save_or_rescue(path, optimizer, world, open) ==
          "the weights were not written to " + path);
    if (world.rank == 0) {
      CHECK(bytes_of(only_file(folder.path("working"))) == bytes_of(expected));
    }
  }
  SECTION("among temporary files, if disks fill up during the first two attempts") {
    const Places places(folder.path("working"), folder.path("temporary"));
    int opened = 0;
    const auto full_disks = [&](const std::string& path) {
      const auto writer = std::make_shared<nn::WeightsWriter>(path, model);
      const bool full = ++opened < 3;
      return train::WeightsSink{
          .write =
              [=](const nn::NamedParameter& named, std::span<const float> values) {
                if (full && named.name == "bias") fail("{}: the disk is full", path);
                writer->write(named, values);
              },
          .commit = [=, &model] { writer->commit(model, 0); }};
    };
    const std::string text =
        failure([&] { train::save_parameters(folder.path("w"), optimizer, world, full_disks); });
    if (world.rank == 0) {
      const std::string rescued = only_file(folder.path("temporary"));
      CHECK(text ==
            folder.path("w") + ": the disk is full; the weights are in " + rescued + " instead");
      CHECK(bytes_of(rescued) == bytes_of(expected));
      CHECK(std::filesystem::is_empty(folder.path("working")));
      CHECK_FALSE(std::filesystem::exists(folder.path("w")));
    }
  }
  SECTION("nowhere, and the error gives all reasons") {
    const Places places(folder.path("gone"), folder.path("no"));
    std::filesystem::remove(folder.path("gone"));
    const std::string text = failure(
        [&] { train::save_weights(folder.path("no/w.safetensors"), model, optimizer, world); });
    if (world.rank == 0) {
      CHECK_THAT(text,
                 Catch::Matchers::ContainsSubstring("no/w.safetensors: cannot be written") &&
                     Catch::Matchers::ContainsSubstring("; the weights are lost, because no") &&
                     Catch::Matchers::ContainsSubstring("current path") &&
                     Catch::Matchers::ContainsSubstring("temp_directory_path"));
    }
  }
}

}  // namespace
}  // namespace tessera::test
