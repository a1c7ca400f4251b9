#include "emulated/launch_record.h"

#include <cxxabi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "emulated/static_shared.h"

namespace emulated {

namespace {

class Record {
 public:
  Record() {
    const char* const path = std::getenv("TESSERA_EMULATED_LAUNCHES");
    if (path != nullptr) path_ = path;
  }
  ~Record() {
    if (path_.empty()) return;
    std::FILE* const file = std::fopen(path_.c_str(), "w");
    if (file == nullptr) {
      std::perror(path_.c_str());
      return;
    }
    for (const auto& [name, count] : counts_) {
      std::fprintf(file, "%lld\t%s\n", static_cast<long long>(count), name.c_str());
    }
    if (std::fclose(file) != 0) std::perror(path_.c_str());
  }

  bool wanted() const { return !path_.empty(); }
  void add(const std::string& name) {
    const std::lock_guard lock(mutex_);
    ++counts_[name];
  }

 private:
  std::string path_;
  std::mutex mutex_;
  std::map<std::string, int64_t> counts_;
};

Record& record() {
  static Record one;
  return one;
}

}  // namespace

void record_kernel(const void* kernel) {
  if (!record().wanted()) return;
  const std::string symbol = symbol_of(kernel);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  record().add(name == nullptr ? symbol : name.get());
}

void record_call(const char* name) {
  if (record().wanted()) record().add(name);
}

}  // namespace emulated
