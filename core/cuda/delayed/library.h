// A shared library that is loaded at the first call of one of its functions. If the library is
// missing, a program still starts, and only calls into the library fail. Each library function that
// Tessera uses gets a wrapper of the same name:
//
//   int library_version() TESSERA_DELAYED(library, library_version, ())
//
// So callers include the library's own header, and call the function as if the library were linked.
#pragma once

#include <dlfcn.h>

#include <mutex>
#include <string>
#include <utility>

#include "core/error.h"

namespace tessera::cuda {

class DelayedLibrary {
 public:
  /// Every error message begins with `title`. If the library is not found, the message ends with
  /// `advice`.
  DelayedLibrary(std::string title, std::string file, std::string advice = "")
      : title_(std::move(title)), file_(std::move(file)), advice_(std::move(advice)) {}

  template <class Function>
  Function* symbol(const char* name) {
    void* const found = dlsym(handle(), name);
    if (!found) fail("{}: {}", title_, dlerror());
    return reinterpret_cast<Function*>(found);
  }

 private:
  void* handle() {
    std::call_once(opened_, [this] { handle_ = open(); });
    return handle_;
  }
  void* open() const {
    void* found = dlopen(file_.c_str(), RTLD_NOW);
    // If the loader does not find the library, tries the folder where Tessera's build found it.
    if (!found) found = dlopen((TESSERA_CUDA_LIBRARIES "/" + file_).c_str(), RTLD_NOW);
    if (!found) fail("{}: {}{}", title_, dlerror(), advice_);
    return found;
  }

  std::string title_, file_, advice_;
  std::once_flag opened_;
  void* handle_ = nullptr;
};

}  // namespace tessera::cuda

/// The body of a wrapper. `library` is a function that returns the DelayedLibrary.
#define TESSERA_DELAYED(library, name, arguments)                         \
  {                                                                       \
    static const auto function = library().symbol<decltype(name)>(#name); \
    return function arguments;                                            \
  }
