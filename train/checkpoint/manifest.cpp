#include "train/checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "core/digest.h"
#include "core/error.h"
#include "core/text/json_line.h"
#include "core/text/json_read.h"
#include "nn/safetensors.h"

namespace tessera::train {
namespace {

constexpr const char* format_name = "tessera checkpoint 1";
constexpr const char* checksum_begin = ",\n\"checksum\":\"";

// Writes one element per line, so that people can read and compare manifests.
template <class List, class Text>
std::string lines(const List& list, const Text& text) {
  std::string joined;
  for (const auto& element : list) joined += (joined.empty() ? "" : ",\n") + text(element);
  return "[\n" + joined + "]";
}

std::string settings_text(const dist::Settings& settings) {
  JsonObject object;
  for (const auto& [name, value] : settings) object.add(name, value);
  return object.text();
}

std::string map_text(const std::map<std::string, std::string>& map) {
  JsonObject object;
  for (const auto& [name, value] : map) object.add(name, value);
  return object.text();
}

std::string shape_text(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ","));
}

std::string hexadecimal(uint64_t value) { return fmt::format("{:016x}", value); }

/// Reads members of a JSON object of a manifest. Every error names the member.
class Members {
 public:
  Members(std::string where, const nlohmann::json& object)
      : where_(std::move(where)), object_(object) {
    if (!object.is_object()) fail_input("{}: it is not a JSON object", where_);
  }

  const nlohmann::json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) fail_input("{}: it has no \"{}\"", where_, name);
    return *found;
  }
  std::string text(const char* name) const { return text_of(name, at(name)); }
  int64_t integer(const char* name, int64_t greatest = INT64_MAX) const {
    return json_integer(member(name), at(name), 0, greatest);
  }
  bool has(const char* name) const { return object_.contains(name); }
  double number(const char* name) const {
    const nlohmann::json& value = at(name);
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      fail_input("{} is {}, expected a number", member(name), excerpt(value));
    }
    return value.get<double>();
  }
  const nlohmann::json& list(const char* name) const {
    const nlohmann::json& value = at(name);
    if (!value.is_array()) fail_input("{} is {}, expected a list", member(name), excerpt(value));
    return value;
  }
  BlockDigest digest(const char* name) const { return digest_of(member(name), text(name)); }
  dist::Settings settings(const char* name) const {
    const nlohmann::json& value = at(name);
    if (!value.is_object())
      fail_input("{} is {}, expected an object", member(name), excerpt(value));
    dist::Settings list;
    for (const auto& [key, text] : value.items()) list.push_back({key, text_of(name, text)});
    return list;
  }
  std::string member(const char* name) const { return fmt::format("{}: {}", where_, name); }

  static BlockDigest digest_of(const std::string& member, const std::string& text) {
    const auto digest = BlockDigest::parse(text);
    if (!digest) fail_input("{} is not a digest of 32 hexadecimal digits", member);
    return *digest;
  }

 private:
  static std::string excerpt(const nlohmann::json& value) { return json_excerpt(value); }
  std::string text_of(const char* name, const nlohmann::json& value) const {
    if (!value.is_string()) fail_input("{} is {}, expected text", member(name), excerpt(value));
    return value.get<std::string>();
  }

  std::string where_;
  const nlohmann::json& object_;
};

uint64_t parse_hexadecimal(const std::string& member, const std::string& text) {
  const auto digest = BlockDigest::parse(std::string(16, '0') + text);
  if (!digest) fail_input("{} is not a digest of 16 hexadecimal digits", member);
  return digest->low;
}

DType parse_dtype(const std::string& member, const std::string& text) {
  for (const DType dtype :
       {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
    if (nn::safetensors_dtype(dtype) == text) return dtype;
  }
  fail_input("{} is {}, which is not a dtype of checkpoints", member, nn::printable(text));
}

CheckpointFile parse_file(const Members& file) {
  CheckpointFile result{.name = file.text("name"),
                        .bytes = file.integer("bytes"),
                        .header_bytes = file.integer("header_bytes"),
                        .header = parse_hexadecimal(file.member("header"), file.text("header"))};
  // The name must not be a path, because a manifest must not name files outside its folder.
  const std::filesystem::path path(result.name);
  if (path.filename() != path || result.name.empty() || result.name.starts_with('.')) {
    fail_input("{} is {}, expected the name of a file", file.member("name"),
               nn::printable(result.name));
  }
  if (result.header_bytes > result.bytes) {
    fail_input("{} is {}, but the whole file has {} bytes", file.member("header_bytes"),
               result.header_bytes, result.bytes);
  }
  return result;
}

Shape parse_shape(const std::string& member, const nlohmann::json& list) {
  constexpr size_t most_dimensions = Shape::max_rank;
  if (!list.is_array() || list.size() > most_dimensions) {
    fail_input("{} is {}, expected a shape", member, json_excerpt(list));
  }
  Shape shape;
  int64_t elements = 1;
  for (const nlohmann::json& size : list) {
    constexpr int64_t most = int64_t{1} << 48;
    shape.push_back(json_integer(member, size, 0, most));
    if (shape[-1] > 0 && elements > most / shape[-1]) {
      fail_input("{} is {}, which has more than 2^48 elements", member, json_excerpt(list));
    }
    elements *= shape[-1];
  }
  return shape;
}

CheckpointRange parse_range(const std::string& member, const nlohmann::json& list,
                            const Manifest& manifest) {
  constexpr size_t members = 6;
  if (!list.is_array() || list.size() != members || !list[5].is_string()) {
    fail_input("{} has {}, expected [tensor, begin, end, file, offset, digest]", member,
               json_excerpt(list));
  }
  const auto below = [&](size_t index, int64_t count) {
    return json_integer(member, list[index], 0, count - 1);
  };
  CheckpointRange range{.tensor = below(0, std::ssize(manifest.tensors)),
                        .file = below(3, std::ssize(manifest.files))};
  const optim::StateTensor& tensor = manifest.tensors[static_cast<size_t>(range.tensor)];
  const CheckpointFile& file = manifest.files[static_cast<size_t>(range.file)];
  range.end = json_integer(member, list[2], 0, tensor.shape.elements());
  range.begin = json_integer(member, list[1], 0, range.end);
  const int64_t bytes = (range.end - range.begin) * dtype_size(tensor.dtype);
  if (range.begin % digest_block != 0) {
    fail_input("{} has {}, which does not begin with a block of 256 elements", member,
               json_excerpt(list));
  }
  if (bytes > file.bytes - file.header_bytes) {
    fail_input("{} has {}, which is longer than {}", member, json_excerpt(list), file.name);
  }
  range.offset = json_integer(member, list[4], file.header_bytes, file.bytes - bytes);
  range.digest = Members::digest_of(member, list[5].get<std::string>());
  return range;
}

// Throws unless the ranges cover each element of each tensor once and in order. Also throws unless
// the sum of the ranges' digests is the manifest's digest.
void check_complete(const std::string& where, const Manifest& manifest) {
  size_t next = 0;
  BlockDigest digest;
  for (size_t t = 0; t < manifest.tensors.size(); ++t) {
    const optim::StateTensor& tensor = manifest.tensors[t];
    int64_t covered = 0;
    for (; next < manifest.ranges.size(); ++next) {
      const CheckpointRange& range = manifest.ranges[next];
      if (range.tensor != static_cast<int64_t>(t) || range.begin != covered) break;
      covered = range.end;
      digest += range.digest;
    }
    if (covered != tensor.shape.elements()) {
      fail_input("{}: ranges: expected the next range to begin at element {} of {}", where, covered,
                 nn::printable(tensor.path()));
    }
  }
  if (next != manifest.ranges.size()) fail_input("{}: ranges: they are not in order", where);
  if (digest != manifest.digest) {
    fail_input("{}: digest: it is not the sum of the ranges' digests", where);
  }
}

JsonObject best_json(const BestEvaluation& best) {
  JsonObject object;
  object.add("step", best.step).add("value", best.value).add("tie", best.tie);
  if (!best.evaluated.empty()) object.add("evaluated", best.evaluated);
  if (best.file) {
    object.add("bytes", best.file->bytes).add("digest", hexadecimal(best.file->digest));
  }
  return object;
}

// "best" is missing if there are no best weights. In "best", "evaluated" is missing if the program
// gives no such text. "bytes" and "digest" are missing if the weights are not in one file. Earlier
// versions wrote none of these three members.
std::optional<BestEvaluation> parse_best(const Members& members) {
  if (!members.has("best")) return std::nullopt;
  const Members best(members.member("best"), members.at("best"));
  BestEvaluation result{.step = best.integer("step"),
                        .value = best.number("value"),
                        .tie = best.number("tie"),
                        .evaluated = best.has("evaluated") ? best.text("evaluated") : ""};
  if (best.has("digest")) {
    result.file = {.bytes = best.integer("bytes"),
                   .digest = parse_hexadecimal(best.member("digest"), best.text("digest"))};
  }
  return result;
}

void parse_tensors(const std::string& where, const nlohmann::json& list, Manifest& manifest) {
  std::set<std::string> paths;
  for (const nlohmann::json& entry : list) {
    const Members tensor(where + ": tensors", entry);
    manifest.tensors.push_back({.name = tensor.text("name"),
                                .kind = tensor.text("kind"),
                                .dtype = parse_dtype(tensor.member("dtype"), tensor.text("dtype")),
                                .shape = parse_shape(tensor.member("shape"), tensor.at("shape"))});
    const std::string path = manifest.tensors.back().path();
    if (!paths.insert(path).second) {
      fail_input("{}: tensors: {} is there twice", where, nn::printable(path));
    }
  }
}

// Returns the text before the checksum. Throws if the checksum is missing or does not match.
std::string_view checked_part(const std::string& where, std::string_view text) {
  const size_t at = text.rfind(checksum_begin);
  if (at == std::string_view::npos)
    fail_input("{}: it is not whole: its checksum is missing", where);
  const std::string_view part = text.substr(0, at);
  if (text != with_checksum(std::string(part))) {
    fail_input("{}: its checksum does not match: it was changed, or is not whole", where);
  }
  return part;
}

}  // namespace

std::string with_checksum(const std::string& members) {
  return members + checksum_begin + hexadecimal(xxh3(members)) + "\"}\n";
}

std::string manifest_text(const Manifest& manifest) {
  JsonObject object;
  object.add("format", format_name)
      .add("version", manifest.version)
      .add("step", manifest.step)
      .add("skipped", manifest.skipped);
  if (manifest.best) object.add("best", best_json(*manifest.best));
  object.add("digest", manifest.digest.text())
      .add("layout", JsonObject()
                         .add("ranks", manifest.layout.ranks)
                         .add("stage", manifest.layout.stage)
                         .add("bucket_bytes", manifest.layout.bucket_bytes))
      .raw("run", settings_text(manifest.run))
      .raw("bits", settings_text(manifest.bits));
  // The next four members are optional. Each is written only if it is not empty.
  if (!manifest.weights.empty()) object.raw("weights", map_text(manifest.weights));
  if (!manifest.imported.empty()) object.add("imported", manifest.imported);
  if (!manifest.tuned.empty()) object.add("tuned", manifest.tuned);
  if (!manifest.events.empty()) {
    object.raw("events", fmt::format("[{}]", fmt::join(manifest.events, ",")));
  }
  object
      .raw("files", lines(manifest.files,
                          [](const CheckpointFile& file) {
                            return JsonObject()
                                .add("name", file.name)
                                .add("bytes", file.bytes)
                                .add("header_bytes", file.header_bytes)
                                .add("header", hexadecimal(file.header))
                                .text();
                          }))
      .raw("tensors", lines(manifest.tensors,
                            [](const optim::StateTensor& tensor) {
                              return JsonObject()
                                  .add("name", tensor.name)
                                  .add("kind", tensor.kind)
                                  .add("dtype", nn::safetensors_dtype(tensor.dtype))
                                  .raw("shape", shape_text(tensor.shape))
                                  .text();
                            }))
      .raw("ranges", lines(manifest.ranges, [](const CheckpointRange& range) {
             return fmt::format("[{},{},{},{},{},\"{}\"]", range.tensor, range.begin, range.end,
                                range.file, range.offset, range.digest.text());
           }));
  // The closing brace is removed, because the checksum is appended as the last member.
  std::string text = object.indented();
  while (!text.empty() && (text.back() == '}' || text.back() == '\n')) text.pop_back();
  return with_checksum(text);
}

Manifest parse_manifest(const std::string& where, const std::string& text) {
  // The checksum is checked first, so that a text that was cut off or changed is not parsed.
  const std::string whole = std::string(checked_part(where, text)) + "}";
  const JsonLimits limits{.bytes = int64_t{1} << 28, .depth = 8, .values = 20'000'000};
  const nlohmann::json json = parse_json(where, whole, limits);
  const Members members(where, json);
  if (const std::string format = members.text("format"); format != format_name) {
    fail_input("{}: its format is {}, expected \"{}\"", where, nn::printable(format), format_name);
  }
  const Members layout(where + ": layout", members.at("layout"));
  Manifest manifest{.version = members.text("version"),
                    .step = members.integer("step", int64_t{1} << 40),
                    .skipped = members.integer("skipped"),
                    .best = parse_best(members),
                    .digest = members.digest("digest"),
                    .layout = {.ranks = layout.integer("ranks"),
                               .stage = layout.integer("stage"),
                               .bucket_bytes = layout.integer("bucket_bytes")},
                    .run = members.settings("run"),
                    .bits = members.settings("bits"),
                    .files = {},
                    .tensors = {},
                    .ranges = {}};
  if (members.has("weights")) {
    for (const auto& [name, value] : members.settings("weights")) {
      manifest.weights.emplace(name, value);
    }
  }
  if (members.has("imported")) manifest.imported = members.text("imported");
  if (members.has("tuned")) manifest.tuned = members.text("tuned");
  if (members.has("events")) {
    for (const nlohmann::json& event : members.list("events")) {
      manifest.events.push_back(json_integer(members.member("events"), event, 0, INT64_MAX));
    }
  }
  if (manifest.skipped > manifest.step) {
    fail_input("{} is {}, expected at most the {} steps", members.member("skipped"),
               manifest.skipped, manifest.step);
  }
  if (manifest.best && (manifest.best->step < 1 || manifest.best->step > manifest.step)) {
    fail_input("{}: step is {}, expected from 1 to {}", members.member("best"), manifest.best->step,
               manifest.step);
  }
  // Ranges are parsed last, because they refer to files and tensors by index.
  for (const nlohmann::json& entry : members.list("files")) {
    manifest.files.push_back(parse_file(Members(where + ": files", entry)));
  }
  parse_tensors(where, members.list("tensors"), manifest);
  for (const nlohmann::json& entry : members.list("ranges")) {
    manifest.ranges.push_back(parse_range(members.member("ranges"), entry, manifest));
  }
  check_complete(where, manifest);
  return manifest;
}

}  // namespace tessera::train
