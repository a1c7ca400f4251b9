#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/text/utf8.h"
#include "nn/safetensors.h"

namespace tessera::nn {
namespace {

SafetensorsEntry entry_at(int64_t begin, const SafetensorsSpec& spec) {
  return {.name = spec.name,
          .dtype = std::string(safetensors_dtype(spec.dtype)),
          .shape = {spec.shape.begin(), spec.shape.end()},
          .begin = begin,
          .end = begin + spec.shape.elements() * dtype_size(spec.dtype)};
}

std::string make_header(std::span<const SafetensorsEntry> entries,
                        const SafetensorsMetadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  for (const auto& [key, text] : metadata) header["__metadata__"][key] = text;
  for (const SafetensorsEntry& entry : entries) {
    TESSERA_CHECK(is_utf8(entry.name), "safetensors: the tensor name {} is not UTF-8",
                  printable(entry.name));
    TESSERA_CHECK(entry.name != "__metadata__" && !header.contains(entry.name),
                  "safetensors: the tensor name '{}' is reserved or given twice", entry.name);
    header[entry.name]["dtype"] = entry.dtype;
    header[entry.name]["shape"] = entry.shape;
    header[entry.name]["data_offsets"] = {entry.begin, entry.end};
  }
  // Metadata may contain texts that are not UTF-8. Without `replace`, dump() would throw, and a run
  // would lose its weights.
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');  // so that the data begins at a multiple of 8
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsSpec> tensors,
                                     const SafetensorsMetadata& metadata)
    : file_(path) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return dtype_size(a.dtype) > dtype_size(b.dtype);
  });
  std::vector<SafetensorsEntry> entries;
  for (const SafetensorsSpec& spec : tensors) {
    entries.push_back(entry_at(entries.empty() ? 0 : entries.back().end, spec));
  }
  const std::string header = make_header(entries, metadata);
  const uint64_t header_bytes = header.size();
  header_.assign(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  header_ += header;
  file_.write(header_);
  data_begin_ = std::ssize(header_);
  for (SafetensorsEntry& entry : entries) entries_.emplace(entry.name, std::move(entry));
}

const SafetensorsEntry& SafetensorsWriter::entry(std::string_view name) const {
  const auto found = entries_.find(name);
  TESSERA_CHECK(found != entries_.end(), "safetensors: tensor '{}' was not declared",
                name);
  return found->second;
}

int64_t SafetensorsWriter::position(std::string_view name) const {
  return data_begin_ + entry(name).begin;
}

void SafetensorsWriter::write(std::string_view name, const Tensor& tensor) {
  const auto* data = static_cast<const std::byte*>(tensor.elements() > 0 ? tensor.raw() : nullptr);
  write_bytes(name, tensor.dtype(), 0, {data, static_cast<size_t>(tensor.bytes())});
}

void SafetensorsWriter::write_bytes(std::string_view name, DType dtype, int64_t first,
                                    std::span<const std::byte> bytes) {
  const SafetensorsEntry& entry = this->entry(name);
  TESSERA_CHECK(entry.dtype == safetensors_dtype(dtype),
                "safetensors: '{}' is written as {}, expected {}", name, safetensors_dtype(dtype),
                entry.dtype);
  const int64_t element_bytes = dtype_size(dtype);
  const int64_t elements = (entry.end - entry.begin) / element_bytes;
  const int64_t count = std::ssize(bytes) / element_bytes;
  TESSERA_CHECK(first >= 0 && count <= elements - first,
                "safetensors: {} elements from {} on are written, but '{}' has {}", count, first,
                name, elements);
  if (bytes.empty()) return;
  const int64_t begin = entry.begin + first * element_bytes;
  mark_written(entry, begin, begin + std::ssize(bytes));
  file_.write_at(data_begin_ + begin, bytes.data(), bytes.size());
}

// Throws if a part of the range was written before. Merges adjacent ranges, so a complete file has
// one range, or none if all tensors are empty.
void SafetensorsWriter::mark_written(const SafetensorsEntry& entry, int64_t begin, int64_t end) {
  auto next = written_.lower_bound(begin);
  const auto previous = next == written_.begin() ? written_.end() : std::prev(next);
  const bool overlaps = (next != written_.end() && next->first < end) ||
                        (previous != written_.end() && previous->second > begin);
  TESSERA_CHECK(!overlaps, "safetensors: elements of '{}' are written twice", entry.name);
  if (next != written_.end() && next->first == end) {
    end = next->second;
    written_.erase(next);
  }
  if (previous != written_.end() && previous->second == begin) {
    previous->second = end;
  } else {
    written_.emplace(begin, end);
  }
}

void SafetensorsWriter::check_complete() const {
  // The offset of the first byte that was not written, or the end of the data if all bytes were.
  const int64_t missing = written_.contains(0) ? written_.at(0) : 0;
  for (const auto& [name, entry] : entries_) {
    TESSERA_CHECK(missing < entry.begin || missing >= entry.end,
                  "safetensors: elements of '{}' were not written", name);
  }
}

void SafetensorsWriter::commit() {
  check_complete();
  file_.commit();
}

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const SafetensorsMetadata& metadata) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, tensor.dtype(), tensor.shape()});
  }
  SafetensorsWriter file(path, std::move(specs), metadata);
  for (const auto& [name, tensor] : tensors) file.write(name, tensor);
  file.commit();
}

}  // namespace tessera::nn
