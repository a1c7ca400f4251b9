#include "train/checkpoint/path_within.h"

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

/// Changes the process's working directory until the object is destroyed.
class WorkingDirectory {
 public:
  explicit WorkingDirectory(const fs::path& folder) : before_(fs::current_path()) {
    fs::current_path(folder);
  }
  ~WorkingDirectory() { fs::current_path(before_); }

 private:
  fs::path before_;
};

TEST_CASE("a path is found to be within a folder, however written, existing or not") {
  const TemporaryFolder folder;
  const std::string here = fs::path(folder.path("there")).parent_path().string();
  fs::create_directory(folder.path("there"));
  const WorkingDirectory in_folder(here);
  using train::is_path_within;
  for (const std::string& whole : {here, std::string("."), here + "/there/.."}) {
    CAPTURE(whole);
    for (const char* inside : {"new", "./new", "there", "there/new", "new/deeper", "."}) {
      CAPTURE(inside);
      CHECK(is_path_within(inside, whole));
      CHECK(is_path_within(here + "/" + inside, whole));
    }
    for (const char* outside : {"..", "../new", "there/../../new", "/"}) {
      CAPTURE(outside);
      CHECK(!is_path_within(outside, whole));
    }
  }
  CHECK(is_path_within(here + "/new/file", "new"));
  CHECK(is_path_within("new", here + "/new"));
  CHECK(!is_path_within("newer", here + "/new"));
  CHECK(train::is_same_path("new", here + "/./new"));
  CHECK(!train::is_same_path("new/file", "new"));
  fs::create_directory_symlink(here + "/there", here + "/link");
  CHECK(is_path_within("link/file", "there"));
  fs::create_symlink("self", "self");
  CHECK(!is_path_within("self", here));
}

}  // namespace
}  // namespace tessera::test
