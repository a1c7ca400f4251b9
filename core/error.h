// How Tessera reports errors: by throwing `Error` with the operation, the expected and the actual.
//
//   TESSERA_CHECK(w.rank() == 2, "linear: weight has shape {}, expected [in, out]", w.shape());
//
// `InputError` is for what a user supplied (a file, an argument): applications end with
// exit code 2.
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
