#include "nn/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <set>

#include <nlohmann/json.hpp>

namespace tessera::nn {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are read without swapping");

using nlohmann::json;

constexpr int64_t max_header_bytes = 100'000'000;  // the limit of the format's own reader

struct ElementType {
  std::string_view name;
  int64_t bytes;
};
constexpr ElementType element_types[] = {
    {"F64", 8}, {"I64", 8},  {"U64", 8},     {"F32", 4},     {"I32", 4}, {"U32", 4},
    {"F16", 2}, {"BF16", 2}, {"I16", 2},     {"U16", 2},     {"I8", 1},  {"U8", 1},
    {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

// The header as JSON. Keys that come twice are refused: readers differ in which one they take.
json parse_json(const std::string& path, const std::string& text) {
  std::vector<std::set<std::string>> open_objects;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > 4) fail_input("{}: the header is nested deeper than the format allows", path);
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        fail_input("{}: the header has the name {} twice", path, printable(key));
      }
    }
    return true;
  };
  try {
    json header = json::parse(text, check);
    if (!header.is_object()) fail_input("{}: the header is not a JSON object", path);
    return header;
  } catch (const json::parse_error& error) {
    fail_input("{}: the header is not valid JSON, at byte {} of {}", path, error.byte, text.size());
  } catch (const json::exception& error) {  // such as a number that is too large
    fail_input("{}: the header is not valid JSON: {}", path, printable(error.what()));
  }
}

int64_t non_negative(const std::string& where, const char* what, const json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    fail_input("{}: {} holds {}, expected whole numbers from 0 on", where, what,
               value.dump(-1, ' ', true).substr(0, 100));
  }
  return value.get<int64_t>();
}

const json& field(const std::string& where, const json& entry, const char* name) {
  const auto found = entry.find(name);
  if (found == entry.end()) fail_input("{}: it has no {}", where, name);
  return *found;
}

// Bytes that dtype and shape ask for.
int64_t required_bytes(const std::string& where, const SafetensorsEntry& entry) {
  const auto type = std::find_if(std::begin(element_types), std::end(element_types),
                                 [&](const ElementType& t) { return t.name == entry.dtype; });
  if (type == std::end(element_types)) {
    fail_input("{}: dtype {} is unknown", where, printable(entry.dtype));
  }
  int64_t bytes = type->bytes;
  bool overflow = false;
  for (const int64_t extent : entry.shape) {
    if (extent == 0) return 0;
    overflow = overflow || __builtin_mul_overflow(bytes, extent, &bytes);
  }
  if (overflow) fail_input("{}: shape [{}] is too large", where, fmt::join(entry.shape, ", "));
  return bytes;
}

SafetensorsEntry parse_entry(const std::string& path, const std::string& name, const json& value,
                             int64_t data_bytes) {
  const std::string where = fmt::format("{}: tensor {}", path, printable(name));
  if (!value.is_object()) fail_input("{}: its description is not a JSON object", where);
  SafetensorsEntry entry{.name = name, .dtype = {}, .shape = {}};

  const json& dtype = field(where, value, "dtype");
  if (!dtype.is_string()) fail_input("{}: dtype is not a string", where);
  entry.dtype = dtype.get<std::string>();

  const json& shape = field(where, value, "shape");
  if (!shape.is_array() || shape.size() > 64) {
    fail_input("{}: shape is not a list of at most 64 numbers", where);
  }
  for (const json& extent : shape) entry.shape.push_back(non_negative(where, "shape", extent));

  const json& offsets = field(where, value, "data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) {
    fail_input("{}: data_offsets is not a list of two numbers", where);
  }
  entry.begin = non_negative(where, "data_offsets", offsets[0]);
  entry.end = non_negative(where, "data_offsets", offsets[1]);
  if (entry.begin > entry.end || entry.end > data_bytes) {
    fail_input("{}: data_offsets are [{}, {}], but the file has {} bytes of data", where,
               entry.begin, entry.end, data_bytes);
  }
  const int64_t required = required_bytes(where, entry);
  if (entry.end - entry.begin != required) {
    fail_input("{}: {} of shape [{}] takes {} bytes, but data_offsets [{}, {}] hold {}", where,
               entry.dtype, fmt::join(entry.shape, ", "), required, entry.begin, entry.end,
               entry.end - entry.begin);
  }
  return entry;
}

// Together the tensors must be the file's data: no overlap, no hole, nothing behind them.
void check_coverage(const std::string& path, std::vector<SafetensorsEntry>& entries,
                    int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t covered = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < covered) {
      fail_input("{}: tensor {}: its bytes [{}, {}] overlap another tensor's, which end at {}",
                 path, printable(entry.name), entry.begin, entry.end, covered);
    }
    if (entry.begin > covered) {
      fail_input("{}: tensor {}: begins at byte {}, and bytes from {} to there belong to no tensor",
                 path, printable(entry.name), entry.begin, covered);
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    fail_input("{}: the tensors end at byte {} of the data, but the file has {}", path, covered,
               data_bytes);
  }
}

std::map<std::string, std::string> parse_metadata(const std::string& path, const json& value) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) fail_input("{}: __metadata__ is not a JSON object", path);
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      fail_input("{}: __metadata__ {} is not a string", path, printable(key));
    }
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

}  // namespace

std::string_view safetensors_dtype(DType dtype) {
  constexpr std::string_view names[] = {"F32", "BF16", "F16", "I32", "I64", "U8"};
  return names[static_cast<size_t>(dtype)];
}

std::string printable(std::string_view name) {
  constexpr size_t longest = 100;
  const std::string cut(name.substr(0, longest));
  return json(cut).dump(-1, ' ', true, json::error_handler_t::replace) +
         (name.size() > longest ? "..." : "");
}

int64_t SafetensorsEntry::elements() const {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  // Not blocking: a pipe without a writer would hang in open.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail_input("{}: cannot be opened: {}", path, std::strerror(errno));
  try {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
      fail_input("{}: is not a regular file", path);
    }
    const int64_t file_bytes = status.st_size;
    if (file_bytes < 8) {
      fail_input("{}: has {} bytes, too few for a safetensors file", path, file_bytes);
    }
    uint64_t header_bytes = 0;
    read_bytes(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
    if (header_bytes > uint64_t{max_header_bytes}) {
      fail_input("{}: not a safetensors file: a header of {} bytes, at most {} are allowed", path,
                 header_bytes, max_header_bytes);
    }
    if (header_bytes > static_cast<uint64_t>(file_bytes - 8)) {
      fail_input("{}: truncated: a header of {} bytes in a file of {}", path, header_bytes,
                 file_bytes);
    }
    std::string text(header_bytes, '\0');
    read_bytes(8, std::as_writable_bytes(std::span(text)));
    data_begin_ = 8 + static_cast<int64_t>(header_bytes);

    const int64_t data_bytes = file_bytes - data_begin_;
    const json header = parse_json(path, text);  // which items() only refers to
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        metadata_ = parse_metadata(path, value);
      } else {
        entries_.push_back(parse_entry(path, name, value, data_bytes));
      }
    }
    check_coverage(path, entries_, data_bytes);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

SafetensorsReader::~SafetensorsReader() { ::close(descriptor_); }

const SafetensorsEntry& SafetensorsReader::entry(std::string_view name) const {
  for (const SafetensorsEntry& entry : entries_) {
    if (entry.name == name) return entry;
  }
  fail_input("{}: it has no tensor {}", path_, printable(name));
}

void SafetensorsReader::check_dtype(const SafetensorsEntry& entry, DType dtype) const {
  if (entry.dtype != safetensors_dtype(dtype)) {
    fail_input("{}: tensor {}: dtype is {}, expected {}", path_, printable(entry.name), entry.dtype,
               safetensors_dtype(dtype));
  }
}

void SafetensorsReader::check_range(const SafetensorsEntry& entry, int64_t first,
                                    int64_t count) const {
  TESSERA_CHECK(first >= 0 && count <= entry.elements() - first,
                "safetensors: {} elements from {} on, but '{}' has {}", count, first, entry.name,
                entry.elements());
}

template <class T>
void SafetensorsReader::read_widened(const SafetensorsEntry& entry, int64_t first,
                                     std::span<float> out) const {
  constexpr size_t piece = size_t{1} << 16;
  std::vector<T> values(std::min(piece, out.size()));
  while (!out.empty()) {
    const size_t count = std::min(piece, out.size());
    read(entry, first, std::span(values).first(count));
    for (size_t i = 0; i < count; ++i) out[i] = float(values[i]);
    out = out.subspan(count);
    first += static_cast<int64_t>(count);
  }
}

void SafetensorsReader::read_as_f32(const SafetensorsEntry& entry, int64_t first,
                                    std::span<float> out) const {
  check_range(entry, first, static_cast<int64_t>(out.size()));
  if (entry.dtype == safetensors_dtype(DType::f32)) return read(entry, first, out);
  if (entry.dtype == safetensors_dtype(DType::bf16)) {
    return read_widened<BFloat16>(entry, first, out);
  }
  if (entry.dtype == safetensors_dtype(DType::f16)) return read_widened<Float16>(entry, first, out);
  fail_input("{}: tensor {}: dtype is {}, expected F32, BF16 or F16", path_, printable(entry.name),
             entry.dtype);
}

void SafetensorsReader::read_bytes(int64_t begin, std::span<std::byte> out) const {
  int64_t position = data_begin_ + begin;
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), position);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("{}: reading failed: {}", path_, std::strerror(errno));
    if (got == 0) fail_input("{}: the file has become shorter while it was read", path_);
    out = out.subspan(static_cast<size_t>(got));
    position += got;
  }
}

}  // namespace tessera::nn
