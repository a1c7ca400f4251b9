#include "nn/safetensors.h"

#include <algorithm>
#include <bit>

#include <nlohmann/json.hpp>

#include "core/text/json_read.h"

namespace tessera::nn {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are read without swapping");

using nlohmann::json;

constexpr int64_t max_header_bytes = 100'000'000;  // the limit of Hugging Face's reader

struct ElementType {
  std::string_view name;
  int64_t bytes;
};
constexpr ElementType element_types[] = {
    {"F64", 8}, {"I64", 8},  {"U64", 8},     {"F32", 4},     {"I32", 4}, {"U32", 4},
    {"F16", 2}, {"BF16", 2}, {"I16", 2},     {"U16", 2},     {"I8", 1},  {"U8", 1},
    {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1},
};

// The header is an object of objects that hold lists: three levels. A fourth level is allowed so
// that the parser accepts a list within a list. parse_entry then refuses this list, and the error
// names the tensor.
constexpr JsonLimits header_limits{.bytes = max_header_bytes, .depth = 4};

// Throws if torch.save wrote the file. PyTorch writes a zip of pickles. Files from old versions of
// PyTorch begin with a pickle (protocol 2 to 5). `begin` holds the file's first 8 bytes. In a
// safetensors file they are the header's length. If this length is valid, the file is accepted.
void check_no_pickle(const std::string& path, uint64_t begin) {
  const bool zip = (begin & 0xffffffff) == 0x04034b50;  // "PK\3\4"
  const bool pickle =
      (begin & 0xff) == 0x80 && (begin >> 8 & 0xff) >= 2 && (begin >> 8 & 0xff) <= 5;
  if ((!zip && !pickle) || begin <= uint64_t{max_header_bytes}) return;
  fail_input(
      "{}: not a safetensors file, but a {} as PyTorch writes it, which can run arbitrary code and "
      "is therefore not read; convert it: python3 -c \"import sys, torch, safetensors.torch as s; "
      "s.save_file({{k: v.clone() for k, v in torch.load(sys.argv[1], "
      "weights_only=True).items()}}, "
      "sys.argv[2])\" IN OUT.safetensors",
      path, zip ? "zip of pickles" : "pickle");
}

int64_t non_negative(const std::string& where, const char* what, const json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{INT64_MAX}) {
    fail_input("{}: {} holds {}, expected whole numbers from 0 on", where, what,
               json_excerpt(value));
  }
  return value.get<int64_t>();
}

const json& field(const std::string& where, const json& entry, const char* name) {
  const auto found = entry.find(name);
  if (found == entry.end()) fail_input("{}: it has no {}", where, name);
  return *found;
}

// Returns the bytes that a tensor with the entry's dtype and shape takes.
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

// Sorts the tensors by their place in the file. Throws unless they cover the file's data exactly:
// without overlaps, without gaps, and up to the end.
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

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(path) {
  const int64_t file_bytes = file_.size();
  if (file_bytes < 8) {
    fail_input("{}: has {} bytes, too few for a safetensors file", path, file_bytes);
  }
  uint64_t header_bytes = 0;
  file_.read_at(0, &header_bytes, sizeof(header_bytes));
  check_no_pickle(path, header_bytes);
  if (header_bytes > uint64_t{max_header_bytes}) {
    fail_input("{}: not a safetensors file: a header of {} bytes, expected at most {}", path,
               header_bytes, max_header_bytes);
  }
  if (header_bytes > static_cast<uint64_t>(file_bytes - 8)) {
    fail_input("{}: truncated: a header of {} bytes in a file of {} bytes", path, header_bytes,
               file_bytes);
  }
  std::string text(header_bytes, '\0');
  file_.read_at(8, text.data(), text.size());
  data_begin_ = 8 + static_cast<int64_t>(header_bytes);

  const int64_t data_bytes = file_bytes - data_begin_;
  const json header = parse_json(path + ": the header", text, header_limits);
  if (!header.is_object()) fail_input("{}: the header is not a JSON object", path);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = parse_metadata(path, value);
    } else {
      entries_.push_back(parse_entry(path, name, value, data_bytes));
    }
  }
  check_coverage(path, entries_, data_bytes);
}

const SafetensorsEntry& SafetensorsReader::entry(std::string_view name) const {
  for (const SafetensorsEntry& entry : entries_) {
    if (entry.name == name) return entry;
  }
  fail_input("{}: it has no tensor {}", path(), printable(name));
}

void SafetensorsReader::check_dtype(const SafetensorsEntry& entry, DType dtype) const {
  if (entry.dtype != safetensors_dtype(dtype)) {
    fail_input("{}: tensor {}: dtype is {}, expected {}", path(), printable(entry.name),
               entry.dtype, safetensors_dtype(dtype));
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
  fail_input("{}: tensor {}: dtype is {}, expected F32, BF16 or F16", path(), printable(entry.name),
             entry.dtype);
}

void SafetensorsReader::read_bytes(int64_t begin, std::span<std::byte> out) const {
  file_.read_at(data_begin_ + begin, out.data(), out.size());
}

}  // namespace tessera::nn
