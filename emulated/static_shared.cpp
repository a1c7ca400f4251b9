// A __shared__ variable is a thread_local static variable of its kernel
// (emulated/kernel_language.h). The compiler writes the variable's size to the program's symbol
// table. The variable's name in the table contains the kernel's name.
#include "emulated/static_shared.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace emulated {

namespace {

/// Maps a file into memory for the lifetime of the object. The mapping is empty if the file cannot
/// be read.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    struct stat status = {};
    if (fstat(file, &status) == 0 && status.st_size > 0) {
      size_ = static_cast<size_t>(status.st_size);
      void* const data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
      if (data != MAP_FAILED) data_ = static_cast<const char*>(data);
    }
    close(file);
  }
  ~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Returns the address of `count` objects of type T at `offset`; nullptr if the file is too
  /// short.
  template <class T>
  const T* at(uint64_t offset, uint64_t count = 1) const {
    const bool inside =
        data_ != nullptr && offset <= size_ && count <= (size_ - offset) / sizeof(T);
    return inside ? reinterpret_cast<const T*>(data_ + offset) : nullptr;
  }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

/// The functions and static variables in the symbol table of a program or shared library.
struct Symbols {
  // Mangled names of functions, by their offsets from the load address.
  std::map<uintptr_t, std::string> functions;
  // Mangled names and sizes of the thread_local static variables in functions.
  std::vector<std::pair<std::string, size_t>> statics;

  explicit Symbols(const char* path) {
    const MappedFile file(path);
    const auto* const header = file.at<Elf64_Ehdr>(0);
    if (header == nullptr) return;
    const auto* const sections = file.at<Elf64_Shdr>(header->e_shoff, header->e_shnum);
    if (sections == nullptr) return;
    for (size_t i = 0; i < header->e_shnum; ++i) {
      if (sections[i].sh_type == SHT_SYMTAB && sections[i].sh_link < header->e_shnum) {
        read(file, sections[i], sections[sections[i].sh_link]);
      }
    }
  }

 private:
  void read(const MappedFile& file, const Elf64_Shdr& table, const Elf64_Shdr& names) {
    const uint64_t count = table.sh_size / sizeof(Elf64_Sym);
    const auto* const symbols = file.at<Elf64_Sym>(table.sh_offset, count);
    const char* const text = file.at<char>(names.sh_offset, names.sh_size);
    if (symbols == nullptr || text == nullptr) return;
    for (uint64_t i = 0; i < count; ++i) {
      const Elf64_Sym& symbol = symbols[i];
      if (symbol.st_name >= names.sh_size) continue;
      const std::string_view name(text + symbol.st_name);
      const auto type = ELF64_ST_TYPE(symbol.st_info);
      if (type == STT_FUNC && name.starts_with("_Z")) {
        functions.emplace(symbol.st_value, name);
      } else if (type == STT_TLS && name.starts_with("_ZZ")) {
        statics.emplace_back(name, symbol.st_size);
      }
    }
  }
};

/// The program or shared library that contains an address.
struct Module {
  uintptr_t address;
  uintptr_t begin = 0;  // the load address
  std::string path = {};
};

Module module_of(const void* function) {
  Module module{reinterpret_cast<uintptr_t>(function)};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        auto& found = *static_cast<Module*>(result);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
          if (segment.p_type != PT_LOAD || found.address < begin ||
              found.address >= begin + segment.p_memsz) {
            continue;
          }
          found.begin = info->dlpi_addr;
          // dlpi_name is empty for the program itself.
          found.path = *info->dlpi_name != '\0' ? info->dlpi_name : "/proc/self/exe";
          return 1;
        }
        return 0;
      },
      &module);
  return module;
}

/// True if a static variable belongs to a function or to a lambda in the function. A function's
/// name is _Z<encoding>, and the name of its variable is _ZZ<encoding>E<variable>. Each lambda
/// around the variable adds another Z at the start.
bool belongs_to(std::string_view variable, std::string_view function) {
  const size_t encoding = variable.find_first_not_of('Z', 1);
  if (encoding == std::string_view::npos) return false;
  const std::string_view rest = variable.substr(encoding);
  const std::string_view own = function.substr(2);
  return rest.size() > own.size() && rest.starts_with(own) && rest[own.size()] == 'E';
}

struct KernelSymbol {
  std::string name;
  std::optional<size_t> static_bytes;
};

const KernelSymbol& find_kernel(const void* kernel) {
  static std::mutex mutex;
  static auto& modules = *new std::map<std::string, Symbols>;
  static auto& known = *new std::map<const void*, KernelSymbol>;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(kernel); found != known.end()) return found->second;
  const Module module = module_of(kernel);
  const Symbols& symbols = modules.try_emplace(module.path, module.path.c_str()).first->second;
  KernelSymbol& result = known[kernel];
  const auto function = symbols.functions.find(module.address - module.begin);
  if (function == symbols.functions.end()) return result;
  result.name = function->second;
  result.static_bytes = 0;
  for (const auto& [name, size] : symbols.statics) {
    if (belongs_to(name, function->second)) *result.static_bytes += size;
  }
  return result;
}

}  // namespace

std::optional<size_t> static_shared_bytes(const void* kernel) {
  return find_kernel(kernel).static_bytes;
}

std::string symbol_of(const void* kernel) { return find_kernel(kernel).name; }

}  // namespace emulated
