// Tests that one run at a time can claim a folder of checkpoints, and when a claim removes its lock
// file.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "dist/communicator.h"
#include "tests/support/catch.h"
#include "tests/support/open_file_limit.h"
#include "tests/support/temporary_folder.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_folder.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using train::CheckpointFolder;
namespace fs = std::filesystem;

bool claims(const std::string& folder) {
  return message_of<InputError>([&] { const CheckpointFolder claimed(folder); })
             .find("another run writes its checkpoints there") == std::string::npos;
}

TEST_CASE("a claim on a folder without checkpoints removes what it made") {
  const TemporaryFolder folder;
  const std::string run = folder.path("new/run"), lock = run + "/lock";
  fs::create_directories(folder.path("new"));
  {
    const CheckpointFolder claimed(run);
    CHECK(fs::exists(lock));
  }
  CHECK_FALSE(fs::exists(run));
  CHECK(fs::exists(folder.path("new")));  // this folder existed before
  {
    const CheckpointFolder claimed(folder.path("new/a/b/"));
    std::ofstream(folder.path("new/a/log")) << "kept";
  }
  CHECK_FALSE(fs::exists(folder.path("new/a/b")));
  CHECK(fs::exists(folder.path("new/a/log")));
  std::ofstream(folder.path("file")) << "kept";
  const auto refusal = [](const std::string& where) {
    return message_of<InputError>([&] { const CheckpointFolder claimed(where); });
  };
  CHECK_THAT(refusal(folder.path("file/run")),
             ContainsSubstring("cannot be made: Not a directory"));
  CHECK_THAT(refusal("/sys/a/b"), ContainsSubstring("cannot be made: ") &&
                                      !ContainsSubstring("No such file"));
  {
    const CheckpointFolder claimed(folder.path("x/../y"));
    std::ofstream(folder.path("y/log")) << "kept";
  }
  CHECK(fs::exists(folder.path("x/../y/log")));
  fs::create_directory(run);
  {
    const CheckpointFolder claimed(run);
    CHECK(fs::exists(lock));
    CHECK_FALSE(claims(run));
    CHECK(fs::exists(lock));  // the refused claim has not removed the lock of `claimed`
    CHECK_FALSE(claims(run));
  }
  CHECK(fs::is_empty(run));
  {
    const CheckpointFolder claimed(run);
    fs::create_directory(run + "/step-000000003");
  }
  CHECK(fs::exists(lock));  // the folder has a checkpoint, so the lock stays
  fs::remove(run + "/step-000000003");
  CHECK(claims(run));
  CHECK(fs::exists(lock));  // the last claim did not make the lock, so it did not remove it
}

TEST_CASE("a folder that cannot be locked because too many files are open is not bad input") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  CHECK(failure_with_files(0, [&] { const CheckpointFolder claimed(run); }) ==
        run + "/lock: cannot be written: Too many open files");
  CHECK_FALSE(fs::exists(run));
}

TEST_CASE("checkpoints that cannot be listed because too many files are open are not bad input") {
  const TemporaryFolder folder;
  const std::string path = folder.path("");
  CHECK(failure_with_files(0, [&] { train::checkpoint_steps(path); }) ==
        path + ": cannot be read: Too many open files");
  const dist::World world{.communicator = dist::single_communicator()};
  CHECK(failure_with_files(0, [&] { train::find_checkpoint(path, world); }) ==
        path + ": cannot be read: Too many open files");
}

TEST_CASE("a claim removes unfinished checkpoints, but nothing with a similar name") {
  const TemporaryFolder folder;
  const std::string run = folder.path("run");
  const std::vector<std::string> others = {"step-notes.partial", "step-9.partial",
                                           "step-000000005.safetensors.1a2b.partial",
                                           "step-x.before.partial"};
  for (const std::string& name : others) fs::create_directories(fs::path(run) / name);
  fs::create_directories(run + "/step-000000005.partial/x");
  fs::create_directories(run + "/step-000000006.before.partial");
  { const CheckpointFolder claimed(run); }
  for (const std::string& name : others) {
    CAPTURE(name);
    CHECK(fs::exists(fs::path(run) / name));
  }
  CHECK_FALSE(fs::exists(run + "/step-000000005.partial"));
  CHECK(fs::exists(run + "/step-000000006"));
}

TEST_CASE("a claimed folder is recognized by its mark, at any path") {
  const TemporaryFolder folder;
  const std::string run = folder.path("a/run"), link = folder.path("link");
  fs::create_directories(run);
  {
    CheckpointFolder claimed(run);
    const std::string mark = claimed.put_mark();
    fs::create_directory_symlink(run, link);
    CHECK(CheckpointFolder::has_mark(run, mark));
    CHECK(CheckpointFolder::has_mark(link, mark));
    CHECK_FALSE(CheckpointFolder::has_mark(run, "lock.0"));
    CHECK_FALSE(CheckpointFolder::has_mark(folder.path("b/c/run"), mark));
    CHECK_FALSE(fs::exists(folder.path("b")));  // has_mark removes the folders that it made
    claimed.remove_mark();
    CHECK_FALSE(CheckpointFolder::has_mark(run, mark));
    CHECK(claimed.put_mark() != mark);
  }
  CHECK(fs::is_empty(run));  // the destructor has removed the second mark
}

}  // namespace
}  // namespace tessera::test
