// A library that the first call of one of its functions loads: a program starts, and runs what does
// not need it, where it is absent. The functions in use have the library's names, so that callers
// and headers need not know:
//
//   int library_version() TESSERA_DELAYED(library, library_version, ())
#pragma once

#include <dlfcn.h>

#include <mutex>
#include <string>
#include <utility>

#include "core/error.h"

namespace tessera::cuda {

class DelayedLibrary {
 public:
  /// `title` begins messages; `advice` ends that of a library which is not there.
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
    // Where the library was when Tessera was built, if the loader's own places do not have it.
    if (!found) found = dlopen((TESSERA_CUDA_LIBRARIES "/" + file_).c_str(), RTLD_NOW);
    if (!found) fail("{}: {}{}", title_, dlerror(), advice_);
    return found;
  }

  std::string title_, file_, advice_;
  std::once_flag opened_;
  void* handle_ = nullptr;
};

}  // namespace tessera::cuda

/// A function's body; `library` is a function that returns its DelayedLibrary.
#define TESSERA_DELAYED(library, name, arguments)                         \
  {                                                                       \
    static const auto function = library().symbol<decltype(name)>(#name); \
    return function arguments;                                            \
  }
