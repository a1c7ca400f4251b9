// How Tessera reports errors: it throws `Error`, whose message names the operation, the expected
// value and the actual value.
//
//   TESSERA_CHECK(w.rank() == 2, "linear: weight has shape {}, expected [in, out]", w.shape());
//
// `InputError` reports a mistake in a file or an argument that the user supplied. Applications then
// end with exit code 2.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tessera {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InputError : public Error {
 public:
  using Error::Error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void fail_input(fmt::format_string<Args...> format, Args&&... args) {
  throw InputError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tessera

#define TESSERA_CHECK(condition, ...)                    \
  do {                                                   \
    if (!(condition)) [[unlikely]] {                     \
      ::tessera::fail(__VA_ARGS__);                      \
    }                                                    \
  } while (false)
