#include "train/report/tensorboard.h"

#include <map>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

bool is_speed(std::string_view name) { return name.ends_with("_per_s") || name.ends_with("_ms"); }

// Returns the rows of a Markdown table, one row for each setting.
std::string settings_table(const Json& header, const std::string& prefix = "") {
  std::string rows;
  for (const auto& [name, value] : header.items()) {
    if (name == "type" || name == "layout") continue;
    if (value.is_object()) {
      rows += settings_table(value, prefix + name + ".");
    } else {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      rows += fmt::format("| {}{} | {} |\n", prefix, name, text);
    }
  }
  return rows;
}

// Returns the kind of a layer's parameter: the part of the name after the layer's number. For
// example, the kind of "h.3.attn.c_attn.weight" is "attn.c_attn.weight". Returns an empty text if
// the name has no number.
std::string kind_of(const std::string& name) {
  size_t begin = 0;
  while (begin < name.size()) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = std::string_view(name).substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      return end < name.size() ? name.substr(end + 1) : std::string();
    }
    begin = end + 1;
  }
  return "";
}

}  // namespace

void TensorBoardWriter::add(const std::string& line) { add(Json::parse(line)); }

void TensorBoardWriter::add(const Json& json) {
  const std::string& type = json["type"].get_ref<const std::string&>();
  const int64_t step = json.value("step", int64_t{0});
  if (type == "header" || type == "resume") {
    file_.text("run", step, "| setting | value |\n| --- | --- |\n" + settings_table(json));
  } else if (type == "step" || type == "eval") {
    for (const auto& [name, value] : json.items()) {
      if (!value.is_number() || name == "step") continue;
      const char* group = type == "eval" ? "eval" : is_speed(name) ? "speed" : "train";
      file_.scalar(fmt::format("{}/{}", group, name), step, value.get<double>());
    }
  } else if (type == "norms" && json.contains("norms")) {
    std::vector<double> all;
    std::map<std::string, std::vector<double>> kinds;
    for (const auto& [name, value] : json["norms"].items()) {
      if (!value.is_number()) continue;
      all.push_back(value.get<double>());
      const std::string kind = kind_of(name);
      if (!kind.empty()) kinds[kind].push_back(all.back());
    }
    file_.histogram("gradient_norms", step, all);
    for (const auto& [kind, values] : kinds) {
      file_.histogram("gradient_norms/" + kind, step, values);
    }
  }
}

}  // namespace tessera::train
