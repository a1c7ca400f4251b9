// A temporary folder that exists as long as its TemporaryFolder object. This file also has
// functions that return the messages of exceptions and the paths of fixtures.
#pragma once

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <unistd.h>

namespace tessera::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> number{0};
    path_ = std::filesystem::temp_directory_path() /
            ("tessera-test-" + std::to_string(::getpid()) + "-" + std::to_string(number++));
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }

  /// Writes a file, and returns its path.
  std::string file(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path(name), std::ios::binary).rdbuf();
    return text.str();
  }

  /// Returns the number of entries. Tests use it to check that no unexpected files exist.
  int64_t entries() const {
    return std::distance(std::filesystem::directory_iterator(path_),
                         std::filesystem::directory_iterator());
  }

 private:
  std::filesystem::path path_;
};

/// Returns the message of the exception E that `body` throws. If `body` throws nothing, returns
/// "nothing was thrown".
template <class E, class Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Returns the path of a file in tests/fixtures.
inline std::string fixture(const std::string& name) {
  const auto tests = std::filesystem::path(__FILE__).parent_path().parent_path();
  return (tests / "fixtures" / name).string();
}

}  // namespace tessera::test
