// Tests that no output of a run gets into the class folders of its images, or becomes a class.
#include "apps/cli/class_folders.h"

#include <filesystem>

#include "core/error.h"
#include "data/file_names.h"
#include "data/images/image_data.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace tessera::apps {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using test::TemporaryFolder;

// Makes files that are listed as images. They are never decoded, so they need no valid content.
void add_images(const TemporaryFolder& folder, const std::vector<std::string>& classes) {
  for (const std::string& name : classes) {
    fs::create_directories(folder.path(name));
    for (const char* file : {"/1", "/2.png"}) folder.file(name + file, "image");
  }
}

// Checks the outputs in `paths`, for a run whose images are in the subfolder images/ of `folder`.
// Returns the text of the error, or "nothing was thrown".
std::string refusal(const TemporaryFolder& folder, const GivenPaths& paths) {
  const std::string data = folder.path("images");
  const data::ImageData opened = data::open_image_data({.path = data});
  return test::message_of<InputError>(
      [&] { check_outside_classes(paths, data, opened.class_parents); });
}

bool refuses(const TemporaryFolder& folder, const char* flag, const std::string& path) {
  CAPTURE(flag, path);
  const std::string error = refusal(folder, {.inputs = {}, .outputs = {{flag, folder.path(path)}}});
  if (error == "nothing was thrown") return false;
  CHECK_THAT(error, ContainsSubstring(flag + (" " + folder.path(path)) + " would write in ") &&
                        ContainsSubstring("where each folder is read as a class of images"));
  return true;
}

TEST_CASE("no output becomes a part, in upper or lower case") {
  const TemporaryFolder folder;
  add_images(folder, {"images/train/cat", "images/train/dog"});
  for (const char* name : {"images/val", "images/VAL", "images/Testing"}) {
    CHECK(refuses(folder, "--checkpoint", name));
  }
  CHECK_FALSE(refuses(folder, "--checkpoint", "images/saved"));
}

TEST_CASE("no output gets into a class folder, or becomes a class") {
  const TemporaryFolder folder;
  add_images(folder, {"images/cat", "images/dog", "elsewhere"});
  for (const char* file : {"images/cat/1", "images/cat/2.png", "images/dog/new.html",
                           "images/cat/deeper/new.html", "images/new/new.html"}) {
    CHECK(refuses(folder, "--report", file));
  }
  CHECK(refuses(folder, "--checkpoint", "images/new"));
  CHECK(refuses(folder, "--tensorboard", "images/new"));
  // Files beside the class folders, and names that begin with a dot, are not read.
  CHECK_FALSE(refuses(folder, "--log", "images/run.jsonl"));
  CHECK_FALSE(refuses(folder, "--log", "images/cat/.run.jsonl"));
  CHECK_FALSE(refuses(folder, "--checkpoint", "images/.saved"));
  CHECK_FALSE(refuses(folder, "--checkpoint", "saved"));
  CHECK_FALSE(refuses(folder, "--report", "elsewhere/1"));
  // Classes and images may be symbolic links.
  fs::create_directory_symlink(folder.path("elsewhere"), folder.path("images/linked"));
  CHECK(refuses(folder, "--report", "elsewhere/1"));
  fs::create_symlink(folder.path("outside.png"), folder.path("images/cat/3.png"));
  folder.file("outside.png", "image");
  CHECK(refuses(folder, "--report", "images/cat/3.png"));
}

TEST_CASE("the folder of a save beside the class folders would be a class") {
  const TemporaryFolder folder;
  add_images(folder, {"images/cat", "images/dog"});
  GivenPaths paths;
  paths.saves.file = folder.path("images/m.safetensors");
  paths.outputs = {{"--save", paths.saves.file}};
  CHECK(refusal(folder, paths) == "nothing was thrown");
  paths.saves.best = true;
  CHECK_THAT(refusal(folder, paths),
             ContainsSubstring("--save-best " + folder.path("images/best")));
  paths.saves.best = false;
  paths.saves.every = 5;
  CHECK_THAT(refusal(folder, paths),
             ContainsSubstring("--save-every " + folder.path("images/step-000000005")));
}

TEST_CASE("outputs are accepted beside the parts of a folder of images, but not in them") {
  const TemporaryFolder folder;
  add_images(folder, {"images/Train/cat", "images/Train/dog"});
  for (const char* path : {"images/Train", "images/Train/new", "images/training", "images/val",
                           "images/valid/new", "images/test"}) {
    CHECK(refuses(folder, "--tensorboard", path));
  }
  CHECK(refuses(folder, "--log", "images/Train/run.jsonl"));
  CHECK_FALSE(refuses(folder, "--log", "images/run.jsonl"));
  CHECK_FALSE(refuses(folder, "--checkpoint", "images/saved"));
  // Beside val/, a folder called test is not read.
  add_images(folder, {"images/val/cat", "images/val/dog"});
  CHECK(refuses(folder, "--tensorboard", "images/val"));
  CHECK_FALSE(refuses(folder, "--tensorboard", "images/test"));
}

TEST_CASE("a folder of CIFAR has no class folders, but names that outputs cannot have") {
  const TemporaryFolder folder;
  add_images(folder, {"images/cat", "images/dog"});
  std::string record(1 + 32 * 32 * 3, '\0');
  for (size_t i = 1; i < record.size(); ++i) record[i] = static_cast<char>(i % 251);
  folder.file("images/data_batch_1.bin", record);
  folder.file("images/test_batch.bin", record);
  CHECK_FALSE(refuses(folder, "--checkpoint", "images/saved"));
  for (const char* name : {"data_batch_12.bin", "fine_label_names.txt", "train-images.idx3-ubyte",
                           "t10k-labels-idx1-ubyte.gz"}) {
    CHECK(data::names_image_data(name));
  }
  CHECK_FALSE(data::names_image_data("model.bin"));
}

}  // namespace
}  // namespace tessera::apps
