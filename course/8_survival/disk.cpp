#include "course/8_survival/disk.h"

#include <fstream>
#include <iterator>

#include "core/digest.h"
#include "core/error.h"

namespace course {

bool Disk::begin(const std::string& operation) {
  operations_.push_back(operation);
  return std::ssize(operations_) - 1 == crash_at_;
}

void Disk::write(const std::string& name, std::span<const std::byte> bytes) {
  const bool crashes = begin("write " + name);
  Writer sum;
  sum.add(static_cast<int64_t>(xxh3(bytes)));
  std::ofstream file(folder_ / name, std::ios::binary);
  const auto put = [&file](std::span<const std::byte> part) {
    file.write(reinterpret_cast<const char*>(part.data()),
               static_cast<std::streamsize>(part.size()));
  };
  put(crashes ? bytes.first(bytes.size() / 2) : bytes);
  if (!crashes) put(sum.bytes());
  file.close();
  TESSERA_CHECK(file.good(), "{} cannot be written", (folder_ / name).string());
  if (crashes) throw Crash{};
}

void Disk::rename(const std::string& from, const std::string& to) {
  const std::string operation = "rename " + from + " to " + to;
  if (begin(operation)) throw Crash{};
  rename_after_barriers_ = operation;
  std::filesystem::rename(folder_ / from, folder_ / to);
}

void Disk::remove(const std::string& name) {
  if (begin("remove " + name)) throw Crash{};
  std::filesystem::remove(folder_ / name);
}

bool Disk::exists(const std::string& name) const { return std::filesystem::exists(folder_ / name); }

std::vector<std::string> Disk::list() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::vector<std::byte> Disk::read(const std::string& name) const {
  std::ifstream file(folder_ / name, std::ios::binary);
  if (!file) fail_input("there is no file {}", name);
  const std::vector<char> all{std::istreambuf_iterator<char>(file),
                              std::istreambuf_iterator<char>()};
  int64_t sum = 0;
  if (all.size() < sizeof sum) fail_input("file {} is damaged", name);
  std::vector<std::byte> bytes(all.size() - sizeof sum);
  std::memcpy(&sum, all.data() + bytes.size(), sizeof sum);
  if (!bytes.empty()) std::memcpy(bytes.data(), all.data(), bytes.size());
  if (static_cast<int64_t>(xxh3(bytes)) != sum) fail_input("file {} is damaged", name);
  return bytes;
}

void Disk::barrier() {
  rename_after_barriers_ = "";
  if (finish(false)) throw Crash{};
}

bool Disk::finish(bool crashed) {
  const Tensor count = Tensor::zeros({1}, DType::i64);
  count.data<int64_t>()[0] = crashed ? 1 : 0;
  communicator_.all_reduce(count, {}).wait();
  return count.data<int64_t>()[0] > 0;
}

int64_t Reader::number() {
  int64_t result = 0;
  take(&result, sizeof result);
  return result;
}

std::vector<float> Reader::floats(int64_t count) {
  // Checked before the allocation, because a program that reads in another order than it has
  // written may take any number for the count.
  const auto left = static_cast<int64_t>((bytes_.size() - at_) / sizeof(float));
  if (count < 0 || count > left) {
    fail_input(
        "floats({}): expected a count from 0 to {}, because no more are left in the file. Is the "
        "file read in the order in which it was written?",
        count, left);
  }
  std::vector<float> result(static_cast<size_t>(count));
  take(result.data(), result.size() * sizeof(float));
  return result;
}

void Reader::take(void* to, size_t count) {
  if (bytes_.size() - at_ < count) fail_input("a file ends too early");
  if (count > 0) std::memcpy(to, bytes_.data() + at_, count);
  at_ += count;
}

}  // namespace course
