#include "data/tokens/token_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace tessera::data {
namespace {

// llm.c's header. The file of its Llama 3 scripts has another one, and tokens of four bytes.
constexpr int64_t header_bytes = 1024;
constexpr int32_t header_magic = 20240520;
constexpr int32_t header_magic_u32 = 20240801;
constexpr int32_t header_version = 1;

struct Mapping {
  std::shared_ptr<const std::byte> bytes;
  int64_t size = 0;
};

Mapping map_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_input("{}: cannot be opened: {}", path, std::strerror(errno));
  struct stat status {};
  const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<size_t>(status.st_size);
  void* data = regular && size > 0
                   ? ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0)
                   : nullptr;
  const int error = errno;
  ::close(descriptor);
  if (!regular) fail_input("{}: is not a regular file", path);
  if (size == 0) fail_input("{}: is empty", path);
  if (data == MAP_FAILED) fail_input("{}: cannot be mapped: {}", path, std::strerror(error));
  return {{static_cast<const std::byte*>(data),
           [size](const std::byte* p) { ::munmap(const_cast<std::byte*>(p), size); }},
          status.st_size};
}

}  // namespace

TokenFile::TokenFile(const std::string& path) : path_(path) {
  Mapping mapping = map_file(path);
  bytes_ = std::move(mapping.bytes);
  file_bytes_ = mapping.size;
  if (std::filesystem::path(path).extension() == ".bin") {
    width_ = 2;
    skip_header();
  }
  const int64_t token_bytes = file_bytes_ - begin_;
  if (token_bytes % width_ != 0) {
    fail_input("{}: has {} bytes of tokens, expected an even number (uint16)", path, token_bytes);
  }
  size_ = token_bytes / width_;
}

void TokenFile::skip_header() {
  if (file_bytes_ < 4) return;
  int32_t magic = 0;
  std::memcpy(&magic, bytes_.get(), sizeof(magic));
  if (magic == header_magic_u32) {
    fail_input("{}: has llm.c's header for tokens of 4 bytes, expected uint16 tokens", path_);
  }
  // Read as tokens, the magic number would begin with 55432, which GPT-2 does not have.
  if (magic != header_magic) return;
  if (file_bytes_ < header_bytes) {
    fail_input("{}: begins as llm.c's header of {} bytes, but has {}", path_, header_bytes,
               file_bytes_);
  }
  std::array<int32_t, 3> header{};
  std::memcpy(header.data(), bytes_.get(), sizeof(header));
  if (header[1] != header_version) {
    fail_input("{}: llm.c's header has version {}, expected {}", path_, header[1], header_version);
  }
  begin_ = header_bytes;
  if (header[2] < 0 || int64_t{header[2]} * width_ != file_bytes_ - header_bytes) {
    fail_input("{}: llm.c's header says {} tokens, but {} bytes follow, which are {}", path_,
               header[2], file_bytes_ - header_bytes, (file_bytes_ - header_bytes) / width_);
  }
}

template <class T>
std::span<const T> TokenFile::tokens() const {
  return {reinterpret_cast<const T*>(bytes_.get() + begin_), static_cast<size_t>(size_)};
}

void TokenFile::copy(int64_t begin, std::span<int32_t> out) const {
  TESSERA_CHECK(begin >= 0 && static_cast<int64_t>(out.size()) <= size_ - begin,
                "{}: tokens [{}, {}) of {}", path_, begin, begin + static_cast<int64_t>(out.size()),
                size_);
  const auto copy_as = [&](auto all) {
    std::copy_n(all.begin() + begin, out.size(), out.begin());
  };
  if (width_ == 1) {
    copy_as(tokens<uint8_t>());
  } else {
    copy_as(tokens<uint16_t>());
  }
}

void TokenFile::check_vocabulary(int64_t begin, int64_t end, int64_t vocab) const {
  const auto check_as = [&]<class T>(std::span<const T> all) {
    if (vocab > std::numeric_limits<T>::max()) return;
    const auto part = all.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    const auto found =
        std::find_if(part.begin(), part.end(), [vocab](T token) { return token >= vocab; });
    if (found == part.end()) return;
    fail_input("{}: token {} at position {} is beyond the model's vocabulary of {}", path_, *found,
               begin + (found - part.begin()), vocab);
  };
  if (width_ == 1) {
    check_as(tokens<uint8_t>());
  } else {
    check_as(tokens<uint16_t>());
  }
}

}  // namespace tessera::data
