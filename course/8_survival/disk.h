// A folder of files that all ranks share, for lesson 8. It can be told to crash: then an operation
// does only a half of its work, as when the process is killed in the middle of it.
#pragma once

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"

namespace course {

using namespace tessera;

/// Thrown by a crash. Nothing but the check catches it.
struct Crash {};

class Disk {
 public:
  Disk(std::filesystem::path folder, dist::Communicator& communicator)
      : folder_(std::move(folder)), communicator_(communicator) {}

  /// Writes a file, with a checksum behind its bytes. A crash leaves the first half of it.
  void write(const std::string& name, std::span<const std::byte> bytes);
  /// Renames a file, in place of one that has the new name already. Never done by halves.
  void rename(const std::string& from, const std::string& to);
  void remove(const std::string& name);
  bool exists(const std::string& name) const;
  std::vector<std::string> list() const;
  /// Returns what was written. Throws InputError, with the name, if there is no such file or if the
  /// checksum does not fit.
  std::vector<std::byte> read(const std::string& name) const;
  /// Waits for all ranks. Collective. If another rank has crashed, this one crashes too: a job ends
  /// when one of its ranks is killed.
  void barrier();

  // For the check:
  /// The operation with this number, counted from 0, crashes.
  void crash_at(int64_t operation) { crash_at_ = operation; }
  /// write, rename and remove, in order, as "write latest".
  const std::vector<std::string>& operations() const { return operations_; }
  /// Ends a save on this rank, which has crashed or not; the other ranks learn of it. Collective
  /// with their barrier() or finish(). Returns true if any rank has crashed.
  bool finish(bool crashed);

 private:
  /// True if this operation crashes.
  bool begin(const std::string& operation);

  std::filesystem::path folder_;
  dist::Communicator& communicator_;
  int64_t crash_at_ = -1;
  std::vector<std::string> operations_;
};

/// Bytes to write, made of numbers.
class Writer {
 public:
  void add(int64_t number) { add_bytes(&number, sizeof number); }
  void add(std::span<const float> numbers) { add_bytes(numbers.data(), numbers.size_bytes()); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void add_bytes(const void* from, size_t count) {
    const auto* const first = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), first, first + count);
  }
  std::vector<std::byte> bytes_;
};

/// Reads what a Writer has written, in the same order. Throws InputError behind the end.
class Reader {
 public:
  explicit Reader(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  int64_t number();
  std::vector<float> floats(int64_t count);
  bool done() const { return at_ == bytes_.size(); }

 private:
  void take(void* to, size_t count);
  std::vector<std::byte> bytes_;
  size_t at_ = 0;
};

}  // namespace course
