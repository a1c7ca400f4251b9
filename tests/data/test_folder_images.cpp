#include "data/images/formats/folder_images.h"

#include <filesystem>

#include "core/error.h"
#include "data/images/image_data.h"
#include "tests/support/catch.h"
#include "tests/support/image_files.h"
#include "tests/support/open_file_limit.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using test::TemporaryFolder;

namespace {

namespace fs = std::filesystem;

void add_image(const TemporaryFolder& folder, const std::string& file) {
  fs::create_directories(fs::path(folder.path(file)).parent_path());
  folder.file(file, test::png_of(2, 2, "abc"));
}

std::string refusal(const TemporaryFolder& folder) {
  return test::message_of<InputError>([&] { data::open_image_data({.path = folder.path("")}); });
}

}  // namespace

TEST_CASE("a folder for validation without class folders is refused") {
  const TemporaryFolder folder;
  for (const char* file : {"train/a/1.png", "train/b/1.png"}) add_image(folder, file);
  fs::create_directories(folder.path("val"));
  CHECK_THAT(refusal(folder), ContainsSubstring("val: has no class folders, expected those of ") &&
                                  EndsWith("train: a, b"));
}

TEST_CASE("a link to a folder above it is named, not the path of the circle") {
  for (const char* target : {"..", ".", "../a", "../../.."}) {
    CAPTURE(target);
    const TemporaryFolder folder;
    for (const char* file : {"a/1.png", "a/2.png", "b/1.png", "b/2.png"}) add_image(folder, file);
    fs::create_directory_symlink(target, folder.path("a/loop"));
    CHECK_THAT(refusal(folder), EndsWith("/a/loop: is a link to a folder above it, expected "
                                         "images or other folders"));
  }
}

TEST_CASE("a circle over two links is found, and a link to another folder is followed") {
  const TemporaryFolder folder;
  for (const char* file : {"a/1.png", "b/1.png", "c/1.png"}) add_image(folder, file);
  fs::create_directory_symlink("../b", folder.path("a/other"));
  const data::FolderImages images(folder.path(""), {"a", "b", "c"});
  CHECK(images.size() == 4);
  fs::create_directory_symlink("../a", folder.path("b/back"));
  CHECK_THAT(refusal(folder), EndsWith("/a/other/back: is a link to a folder above it, expected "
                                       "images or other folders"));
}

TEST_CASE("a folder within a class that cannot be opened is named") {
  const TemporaryFolder folder;
  add_image(folder, "a/deep/1.png");
  const auto open = [&] { data::FolderImages(folder.path(""), {"a"}); };
  CHECK(test::failure_with_files(1, open) == folder.path("a/deep") + ": Too many open files");
  CHECK(test::failure_with_files(2, open) == "nothing was thrown");
}

TEST_CASE("folders that the machine cannot list are no bad input, and are named") {
  const TemporaryFolder folder;
  add_image(folder, "a/1.png");
  const std::string path = folder.path("a");
  const std::string why = path + ": Too many open files";
  CHECK(test::failure_with_files(0, [&] { data::folders_in(path); }) == why);
  CHECK(test::failure_with_files(0, [&] { data::open_image_data({.path = path}); }) == why);
  CHECK(test::failure_with_files(0, [&] { data::FolderImages(folder.path(""), {"a"}); }) == why);
  CHECK(test::failure_with_files(1, [&] { data::folders_in(path + "/1.png"); }) ==
        "bad input: " + path + "/1.png: Not a directory");
}

TEST_CASE("an image that the machine cannot open is no bad input, and is named") {
  const TemporaryFolder folder;
  add_image(folder, "a/1.png");
  const data::FolderImages images(folder.path(""), {"a"});
  data::ImageMemory memory;
  CHECK(test::failure_with_files(0, [&] { images.read(0, memory); }) ==
        folder.path("a/1.png") + ": cannot be opened: Too many open files");
}

TEST_CASE("a path that cannot be examined is refused with the reason, not as missing") {
  const TemporaryFolder folder;
  fs::create_symlink("circle", folder.path("circle"));
  const std::string path = folder.path("circle/images");
  CHECK(test::message_of<InputError>([&] { data::open_image_data({.path = path}); }) ==
        path + ": Too many levels of symbolic links");
}
