#include <cstdlib>
#include <optional>
#include <string>

#include "core/error.h"
#include "dist/device_choice.h"
#include "tests/support/catch.h"

using namespace tessera;
using dist::threads_per_rank;

namespace {

class Variable {
 public:
  explicit Variable(const char* text) {
    if (const char* const before = std::getenv(name)) before_ = before;
    ::setenv(name, text, 1);
  }
  ~Variable() {
    ::unsetenv(name);
    if (before_) ::setenv(name, before_->c_str(), 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  static constexpr const char* name = "OMP_NUM_THREADS";
  std::optional<std::string> before_;
};

}  // namespace

TEST_CASE("OMP_NUM_THREADS is the number of a rank's threads, or a list that begins with it") {
  for (const char* text : {"3", " 3 ", "3,2", "3 , 1"}) {
    CAPTURE(text);
    const Variable variable(text);
    CHECK(threads_per_rank(0, 1) == 3);
    CHECK(threads_per_rank(2, 1) == 2);
  }
}

TEST_CASE("an OMP_NUM_THREADS that is invalid or above 4096 is refused, unless it is not used") {
  for (const char* text :
       {"", "0", "-1", "2.5", "abc", "4,", "4,x", "4,0", "4097", "3 2", "99999999999999999999"}) {
    CAPTURE(text);
    const Variable variable(text);
    CHECK_THROWS_AS(threads_per_rank(0, 1), InputError);
    CHECK(threads_per_rank(2, 1) == 2);
  }
}
