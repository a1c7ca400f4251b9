#include "models/recommender/recommender_file.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "core/digest.h"
#include "core/text/control_character.h"
#include "core/text/json_read.h"
#include "core/text/number_text.h"
#include "core/text/utf8.h"

namespace tessera::models {
namespace {

constexpr const char* description_key = "tessera_recommender";
constexpr const char* user_ids = "ids.users";  // u8: ids, separated by line ends
constexpr const char* item_ids = "ids.items";
constexpr const char* history_items = "history.items";    // i32
constexpr const char* history_begins = "history.begins";  // i64 (U + 1)

template <class T>
Tensor tensor_of(std::span<const T> values) {
  const Tensor tensor =
      Tensor::empty({std::ssize(values)}, dtype_of<T>, Device{}, Category::workspace);
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor;
}

Tensor joined(const std::vector<std::string>& ids) {
  const std::string text = fmt::format("{}", fmt::join(ids, "\n"));
  return tensor_of(std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

bool has_tensor(const nn::SafetensorsReader& file, const char* name) {
  return std::ranges::find(file.entries(), name, &nn::SafetensorsEntry::name) !=
         file.entries().end();
}

template <class T>
std::vector<T> read_list(const nn::SafetensorsReader& file, const char* name) {
  const nn::SafetensorsEntry& entry = file.entry(name);
  if (entry.shape.size() != 1) {
    fail_input("{}: tensor {}: shape is [{}], expected one dimension", file.path(), name,
               fmt::join(entry.shape, ", "));
  }
  std::vector<T> values(static_cast<size_t>(entry.elements()));
  file.read<T>(entry, 0, values);
  return values;
}

std::vector<std::string> read_ids(const nn::SafetensorsReader& file, const char* name) {
  const std::vector<uint8_t> text = read_list<uint8_t>(file, name);
  std::vector<std::string> ids;
  auto begin = text.begin();
  while (true) {
    const auto end = std::find(begin, text.end(), uint8_t{'\n'});
    ids.emplace_back(begin, end);
    if (end == text.end()) break;
    begin = end + 1;
  }
  return ids;
}

std::vector<std::string> read_ids(const nn::SafetensorsReader& file, const char* name,
                                  int64_t count) {
  std::vector<std::string> ids = read_ids(file, name);
  // `recommend` prints the ids to a terminal, which would obey control characters in the ids.
  // train_recommender refuses ids with control characters in its data too.
  for (const std::string& id : ids) {
    if (!has_control_character(id)) continue;
    fail_input("{}: tensor {} has an id with a control character: {}", file.path(), name,
               nn::printable(id));
  }
  if (std::ssize(ids) != count) {
    fail_input("{}: tensor {} has {} ids, expected {}", file.path(), name, ids.size(), count);
  }
  return ids;
}

void check_description(const RecommenderFile& file) {
  file.config.validate();
  const bool ordered = std::isfinite(file.lowest) && std::isfinite(file.highest) &&
                       file.lowest <= file.highest && std::isfinite(file.config.mean);
  if (!ordered) {
    fail_input("ratings from {} to {} with a mean of {}, expected finite numbers, the lowest first",
               file.lowest, file.highest, file.config.mean);
  }
  if (file.objective == "rating" || file.objective == "bce" || file.objective == "bpr") return;
  fail_input("there is no objective \"{}\", expected one of rating, bce, bpr", file.objective);
}

RecommenderFile parse_description(const std::string& text) {
  const nlohmann::json json = parse_json("its JSON", text);
  RecommenderFile file{.config = {.name = json.at("model"),
                                  .users = json_integer("users", json.at("users")),
                                  .items = json_integer("items", json.at("items")),
                                  .factors = json_integer("factors", json.at("factors")),
                                  .hidden = {},
                                  .mean = json.at("mean")},
                       .objective = json.at("objective"),
                       .lowest = json.at("lowest"),
                       .highest = json.at("highest")};
  const nlohmann::json& hidden = json.at("hidden");
  if (!hidden.is_array()) {
    fail_input("hidden is {}, expected a list of widths", json_excerpt(hidden));
  }
  for (const nlohmann::json& width : hidden) {
    file.config.hidden.push_back(json_integer("hidden", width));
  }
  check_description(file);
  return file;
}

// Returns the model and its sizes in words.
std::string sizes_text(const RecommenderConfig& config) {
  const std::string hidden = config.name == "neumf"
                                 ? fmt::format(", hidden widths {}", fmt::join(config.hidden, ","))
                                 : "";
  return fmt::format("{} with {}{}, {} and {}", config.name, counted(config.factors, "factor"),
                     hidden, counted(config.users, "user"), counted(config.items, "item"));
}

}  // namespace

std::vector<std::string> recommender_tensor_names() {
  return {user_ids, item_ids, history_items, history_begins};
}

nn::SafetensorsMetadata recommender_metadata(const RecommenderFile& file) {
  const nlohmann::ordered_json json = {
      {"model", file.config.name},    {"users", file.config.users},
      {"items", file.config.items},   {"factors", file.config.factors},
      {"hidden", file.config.hidden}, {"mean", file.config.mean},
      {"objective", file.objective},  {"lowest", file.lowest},
      {"highest", file.highest},
  };
  return {{"format", "pt"}, {description_key, json.dump()}};
}

std::vector<nn::NamedTensor> recommender_tensors(const RecommenderFile& file) {
  return {{user_ids, joined(file.user_ids)},
          {item_ids, joined(file.item_ids)},
          {history_items, tensor_of(std::span(file.history))},
          {history_begins, tensor_of(std::span(file.history_begins))}};
}

int64_t recommender_tensor_bytes(const RecommenderFile& file) {
  const auto joined_bytes = [](const std::vector<std::string>& ids) {
    int64_t bytes = std::max<int64_t>(0, std::ssize(ids) - 1);  // line ends between ids
    for (const std::string& id : ids) bytes += std::ssize(id);
    return bytes;
  };
  return joined_bytes(file.user_ids) + joined_bytes(file.item_ids) +
         std::ssize(file.history) * dtype_size(DType::i32) +
         std::ssize(file.history_begins) * dtype_size(DType::i64);
}

bool describes_recommender(const nn::SafetensorsMetadata& metadata) {
  return metadata.contains(description_key);
}

RecommenderFile parse_recommender(const std::string& where,
                                  const nn::SafetensorsMetadata& metadata) {
  const auto found = metadata.find(description_key);
  if (found == metadata.end()) {
    fail_input(
        "{}: its metadata do not describe a model, expected a file that train_recommender "
        "--save wrote",
        where);
  }
  try {
    return parse_description(found->second);
  } catch (const std::exception& error) {
    fail_input("{}: its description of the model cannot be used: {}", where, error.what());
  }
}

RecommenderFile read_recommender_file(const std::string& path) {
  const nn::SafetensorsReader reader(path);
  RecommenderFile file = parse_recommender(path, reader.metadata());
  file.user_ids = read_ids(reader, user_ids, file.config.users);
  file.item_ids = read_ids(reader, item_ids, file.config.items);
  file.history = read_list<int32_t>(reader, history_items);
  file.history_begins = read_list<int64_t>(reader, history_begins);
  if (std::ssize(file.history_begins) != file.config.users + 1) {
    fail_input("{}: tensor {} has {} elements, expected {}", path, history_begins,
               file.history_begins.size(), file.config.users + 1);
  }
  return file;
}

std::string digest_of_ids(const std::vector<std::string>& users,
                          const std::vector<std::string>& items) {
  return fmt::format("{:016x}", digest_of_list(items, digest_of_list(users)));
}

std::optional<std::string> read_digest_of_ids(const nn::SafetensorsReader& file,
                                              const RecommenderConfig& config) {
  if (!has_tensor(file, user_ids) || !has_tensor(file, item_ids)) return std::nullopt;
  return digest_of_ids(read_ids(file, user_ids, config.users),
                       read_ids(file, item_ids, config.items));
}

void check_same_sizes(const std::string& path, const RecommenderConfig& config) {
  const nn::SafetensorsMetadata metadata = nn::SafetensorsReader(path).metadata();
  if (!describes_recommender(metadata)) return;
  const std::string saved = sizes_text(parse_recommender(path, metadata).config);
  const std::string now = sizes_text(config);
  if (saved == now) return;
  fail_input("{}: the weights are of {}; expected those of this run's model and data, {}", path,
             saved, now);
}

std::string printable_id(std::string_view id) {
  return is_utf8(id) ? fmt::format("\"{}\"", with_escaped_controls(id)) : nn::printable(id);
}

void check_same_ids(const std::string& path, const std::vector<std::string>& users,
                    const std::vector<std::string>& items) {
  const nn::SafetensorsReader reader(path);
  const auto check = [&](const char* what, const char* name, const std::vector<std::string>& data) {
    if (!has_tensor(reader, name)) return;
    const std::vector<std::string> file = read_ids(reader, name);
    if (file.size() != data.size()) return;
    const auto [a, b] = std::ranges::mismatch(file, data);
    if (a == file.end()) return;
    fail_input("{}: {} {} has the id {}, but {} in the data, so the weights belong to other ids",
               path, what, a - file.begin() + 1, printable_id(*a), printable_id(*b));
  };
  check("user", user_ids, users);
  check("item", item_ids, items);
}

}  // namespace tessera::models
