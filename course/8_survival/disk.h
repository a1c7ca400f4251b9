// A folder of files that all ranks share, for lesson 8. The lesson's check (check.cpp) can make one
// operation crash, as if the process were killed: a write stops halfway, and a rename or a removal
// does nothing.
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

/// Thrown by a crash. Only the check catches it.
struct Crash {};

class Disk {
 public:
  Disk(std::filesystem::path folder, dist::Communicator& communicator)
      : folder_(std::move(folder)), communicator_(communicator) {}

  /// Writes a file, with a checksum after its bytes. A crash leaves the first half of the bytes.
  void write(const std::string& name, std::span<const std::byte> bytes);
  /// Renames a file, and replaces any file that has the new name. A crash leaves both files as they
  /// were.
  void rename(const std::string& from, const std::string& to);
  void remove(const std::string& name);
  bool exists(const std::string& name) const;
  std::vector<std::string> list() const;
  /// Returns the bytes of a file. Throws InputError, with the name, if there is no such file or if
  /// the checksum is wrong.
  std::vector<std::byte> read(const std::string& name) const;
  /// Waits for all ranks. Collective. If another rank has crashed, this rank crashes too, because a
  /// job ends when one of its ranks is killed.
  void barrier();

  // For the check:
  /// Makes the operation with this number, counted from 0, crash.
  void crash_at(int64_t operation) { crash_at_ = operation; }
  /// Returns the writes, renames and removals in order, as texts such as "write latest".
  const std::vector<std::string>& operations() const { return operations_; }
  /// Returns the last rename that this rank made after its last call of barrier(), or an empty
  /// text.
  std::string rename_after_barriers() const { return rename_after_barriers_; }
  /// Ends a save on this rank, and tells the other ranks whether this rank has crashed. Collective:
  /// the other ranks call barrier() or finish(). Returns true if any rank has crashed.
  bool finish(bool crashed);

 private:
  /// Records an operation. Returns true if it must crash.
  bool begin(const std::string& operation);

  std::filesystem::path folder_;
  dist::Communicator& communicator_;
  int64_t crash_at_ = -1;
  std::vector<std::string> operations_;
  std::string rename_after_barriers_;
};

/// Collects numbers as the bytes of a file.
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

/// Reads the numbers that a Writer has collected, in the same order. Throws InputError if there are
/// not enough bytes, or if a count is negative.
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
