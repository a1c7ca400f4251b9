#include "train/checkpoint/checkpoint_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>

#include "core/digest.h"
#include "core/dispatch.h"
#include "core/error.h"
#include "core/half.h"
#include "core/text/json_read.h"
#include "nn/safetensors.h"

namespace tessera::train {
namespace {

std::string in_folder(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

// Throws Error if this process has no permission to read the file. An InputError would mean a
// damaged checkpoint.
void check_permission(const std::string& path) {
  if (::access(path.c_str(), R_OK) == 0 || errno != EACCES) return;
  fail("{}: cannot be read: {}", path, std::strerror(EACCES));
}

Manifest read_manifest(const std::string& folder) {
  constexpr int64_t most_bytes = int64_t{1} << 28;
  const std::string path = in_folder(folder, manifest_name);
  check_permission(path);
  return parse_manifest(path, read_text_file(path, most_bytes));
}

// True for the kinds of tensors whose presence depends on neither optimizer nor precision.
bool is_of_weights(const std::string& kind) {
  return kind == optim::value_kind || kind == optim::running_mean_kind ||
         kind == optim::running_variance_kind;
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& folder)
    : folder_(folder), manifest_(read_manifest(folder)) {
  // parse_manifest has checked that the ranges are complete and sorted by tensor.
  size_t next = 0;
  for (size_t t = 0; t < manifest_.tensors.size(); ++t) {
    by_path_.emplace(manifest_.tensors[t].path(), t);
    first_range_.push_back(next);
    while (next < manifest_.ranges.size() &&
           manifest_.ranges[next].tensor == static_cast<int64_t>(t)) {
      ++next;
    }
  }
  files_.resize(manifest_.files.size());
  check_files();
}

const InputFile& CheckpointReader::file(size_t index) const {
  if (files_[index] == nullptr) {
    if (open_.size() == most_open) {
      files_[open_.front()].reset();
      open_.pop_front();
    }
    const std::string path = in_folder(folder_, manifest_.files[index].name);
    check_permission(path);
    files_[index] = std::make_unique<InputFile>(path);
    open_.push_back(index);
  }
  return *files_[index];
}

// Checks sizes and headers only. verify() reads the tensors.
void CheckpointReader::check_files() const {
  for (size_t i = 0; i < manifest_.files.size(); ++i) {
    const CheckpointFile& expected = manifest_.files[i];
    const InputFile& file = this->file(i);
    if (file.size() != expected.bytes) {
      fail_input("{}: it has {} bytes, the manifest says {}", file.path(), file.size(),
                 expected.bytes);
    }
    std::string header(static_cast<size_t>(expected.header_bytes), '\0');
    file.read_at(0, header.data(), header.size());
    if (xxh3(header) != expected.header) {
      fail_input("{}: its header was changed since it was written", file.path());
    }
  }
}

void CheckpointReader::verify(int64_t part, int64_t parts) const {
  std::vector<const CheckpointRange*> ranges;
  for (const CheckpointRange& range : manifest_.ranges) ranges.push_back(&range);
  // Ranges are sorted by file and offset, so that each file is read from front to back.
  std::ranges::sort(ranges, {}, [](const CheckpointRange* range) {
    return std::pair(range->file, range->offset);
  });
  const auto bytes_of = [this](const CheckpointRange& range) {
    const optim::StateTensor& of = manifest_.tensors[static_cast<size_t>(range.tensor)];
    return (range.end - range.begin) * dtype_size(of.dtype);
  };
  double all = 0;
  for (const CheckpointRange* range : ranges) all += static_cast<double>(bytes_of(*range));
  const double begin = all * static_cast<double>(part) / static_cast<double>(parts);
  const double end = all * static_cast<double>(part + 1) / static_cast<double>(parts);
  double before = 0;
  std::vector<std::byte> buffer;
  for (const CheckpointRange* range : ranges) {
    // A range belongs to the part in which it begins. The last part also has all ranges that begin
    // at `end` or later. Such ranges are empty, or `end` was rounded down.
    const bool is_own = before >= begin && (before < end || part + 1 == parts);
    before += static_cast<double>(bytes_of(*range));
    if (is_own) verify_range(*range, buffer);
  }
}

void CheckpointReader::verify_range(const CheckpointRange& range,
                                    std::vector<std::byte>& buffer) const {
  constexpr int64_t most_bytes = int64_t{1} << 20;
  constexpr int64_t ahead = int64_t{16} << 20;  // bytes by which the prefetch is ahead of the read
  const optim::StateTensor& of = manifest_.tensors[static_cast<size_t>(range.tensor)];
  const InputFile& file = this->file(static_cast<size_t>(range.file));
  const int64_t element = dtype_size(of.dtype);
  // The range is read in pieces of whole digest blocks (256 elements), because each block is hashed
  // as a whole. The sum of the blocks' digests is the range's digest.
  const int64_t piece = most_bytes / element / digest_block * digest_block;
  const std::string path = of.path();
  BlockDigest digest;
  for (int64_t begin = range.begin; begin < range.end; begin += piece) {
    const int64_t bytes = (std::min(range.end, begin + piece) - begin) * element;
    const int64_t position = range.offset + (begin - range.begin) * element;
    file.will_read(position + ahead, most_bytes);
    buffer.resize(static_cast<size_t>(bytes));
    file.read_at(position, buffer.data(), buffer.size());
    digest += digest_of_blocks(path, begin, element, buffer);
  }
  if (digest != range.digest) {
    fail_input("{}: elements [{}, {}) of {} were changed since they were written", file.path(),
               range.begin, range.end, nn::printable(path));
  }
}

void CheckpointReader::check_tensors(const std::vector<optim::StateTensor>& expected) const {
  for (const optim::StateTensor& wanted : expected) {
    const auto found = by_path_.find(wanted.path());
    if (found == by_path_.end()) {
      fail_input("{}: it has no {}, which the run has{}", folder_, wanted.path(),
                 is_of_weights(wanted.kind)
                     ? ""
                     : "; expected the optimizer and precision that the checkpoint has state of");
    }
    // Float dtypes may differ, because read() converts to f32.
    const optim::StateTensor& there = manifest_.tensors[found->second];
    if (there.shape != wanted.shape || is_float(there.dtype) != is_float(wanted.dtype)) {
      fail_input("{}: {} is {} {}, expected {} {} as in the run", folder_, wanted.path(),
                 dtype_name(there.dtype), there.shape, dtype_name(wanted.dtype), wanted.shape);
    }
  }
  // The checkpoint has all expected tensors. If it has as many tensors as expected, it has no
  // others.
  if (expected.size() == manifest_.tensors.size()) return;
  std::map<std::string, bool> known;
  for (const optim::StateTensor& wanted : expected) known.emplace(wanted.path(), true);
  for (const auto& [path, number] : by_path_) {
    if (!known.contains(path)) {
      fail_input("{}: it has {}, which the run does not have", folder_, nn::printable(path));
    }
  }
}

const optim::StateTensor& CheckpointReader::tensor(const std::string& path) const {
  const auto found = by_path_.find(path);
  if (found == by_path_.end()) fail_input("{}: it has no {}", folder_, nn::printable(path));
  return manifest_.tensors[found->second];
}

void CheckpointReader::read_bytes(const std::string& path, int64_t begin,
                                  std::span<std::byte> out) const {
  const optim::StateTensor& of = tensor(path);
  const int64_t element = dtype_size(of.dtype);
  const int64_t end = begin + std::ssize(out) / element;
  TESSERA_CHECK(begin >= 0 && end <= of.shape.elements(),
                "checkpoint: elements [{}, {}) of {}, which has {}", begin, end, path,
                of.shape.elements());
  const size_t first = first_range_[by_path_.at(path)];
  // Finds the tensor's first range whose end is after `begin`. The tensor's next ranges follow
  // without gaps.
  const auto after = std::upper_bound(
      manifest_.ranges.begin() + static_cast<int64_t>(first), manifest_.ranges.end(), begin,
      [&](int64_t at, const CheckpointRange& range) {
        return range.tensor != manifest_.ranges[first].tensor || at < range.end;
      });
  for (auto range = after; begin < end; ++range) {
    const int64_t last = std::min(end, range->end);
    const auto bytes = static_cast<size_t>((last - begin) * element);
    file(static_cast<size_t>(range->file))
        .read_at(range->offset + (begin - range->begin) * element, out.data(), bytes);
    out = out.subspan(bytes);
    begin = last;
  }
}

void CheckpointReader::read(const std::string& path, int64_t begin, std::span<float> out) const {
  const DType dtype = tensor(path).dtype;
  if (dtype == DType::f32) return read_bytes(path, begin, std::as_writable_bytes(out));
  TESSERA_CHECK(is_float(dtype), "checkpoint: {} is {}, expected floats", path, dtype_name(dtype));
  visit_float(dtype, "checkpoint", [&]<class T>() {
    std::vector<T> narrow(out.size());
    read_bytes(path, begin, std::as_writable_bytes(std::span(narrow)));
    for (size_t i = 0; i < narrow.size(); ++i) out[i] = float(narrow[i]);
  });
}

int64_t CheckpointReader::count(const std::string& path) const {
  const optim::StateTensor& of = tensor(path);
  if (of.dtype != DType::i64 || of.shape.elements() != 1) {
    fail_input("{}: {} is {} {}, expected one i64 number", folder_, nn::printable(path),
               dtype_name(of.dtype), of.shape);
  }
  int64_t value = 0;
  read_bytes(path, 0, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

bool is_damaged(const std::string& folder) {
  try {
    CheckpointReader(folder).verify();
  } catch (const InputError&) {
    return true;
  } catch (const std::exception&) {
    return false;
  }
  return false;
}

}  // namespace tessera::train
