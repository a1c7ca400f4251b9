#include "train/report/run_history.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "train/report/log_reader.h"
#include "train/report/thinned_series.h"

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

// Computes the medians of step_ms and of the speeds. Stores all values: 8 MB per series for a
// million steps. A thinned series would give a wrong median, because it keeps only the least and
// the largest value of each bin.
class Medians {
 public:
  void add(const Json& line) {
    for (const auto& [name, value] : line.items()) {
      const bool wanted = name == "step_ms" || name.ends_with("_per_s");
      if (wanted && value.is_number()) values_[name].push_back(value.get<double>());
    }
  }

  Json json() {
    Json result = Json::object();
    for (auto& [name, values] : values_) {
      const auto middle = values.begin() + std::ssize(values) / 2;
      std::ranges::nth_element(values, middle);
      const bool odd = values.size() % 2 == 1;
      const double below = odd ? *middle : *std::max_element(values.begin(), middle);
      result[name] = (below + *middle) / 2;
    }
    return result;
  }

 private:
  std::map<std::string, std::vector<double>> values_;
};

// Collects series by name, in order of appearance.
class SeriesByName {
 public:
  // A value that is not finite is null in the log, and is left out.
  void add(const Json& line) {
    const double step = line["step"].get<double>();
    for (const auto& [name, value] : line.items()) {
      if (value.is_number() && name != "step") series(name).add(step, value.get<double>());
    }
  }

  Json json() const {
    Json result = Json::object();
    for (const auto& [name, series] : list_) {
      Json points = Json::array();
      for (const auto& [x, y] : series.points()) points.push_back({x, y});
      result[name] = std::move(points);
    }
    return result;
  }

 private:
  ThinnedSeries& series(const std::string& name) {
    for (auto& [known, series] : list_) {
      if (known == name) return series;
    }
    return list_.emplace_back(name, ThinnedSeries()).second;
  }

  std::vector<std::pair<std::string, ThinnedSeries>> list_;
};

// Collects the parameters' norms into a table with one row per step. Whenever the table has more
// than most_values values, it drops every second row, and from then on takes half as many steps.
class Norms {
 public:
  void add(const Json& line) {
    if (count_++ % stride_ != 0) return;
    const Json& norms = line["norms"];
    if (names_.empty()) {
      for (const auto& [name, norm] : norms.items()) names_.push_back(name);
    }
    std::vector<Json> row;
    for (const std::string& name : names_) row.push_back(norms.value(name, Json()));
    steps_.push_back(line["step"]);
    rows_.push_back(std::move(row));
    if (rows_.size() * names_.size() > most_values && rows_.size() > 2) halve();
  }

  Json json() const { return {{"steps", steps_}, {"names", names_}, {"values", rows_}}; }

 private:
  static constexpr size_t most_values = 40000;

  void halve() {
    size_t kept = 0;
    for (size_t i = 0; i < rows_.size(); i += 2, ++kept) {
      rows_[kept] = std::move(rows_[i]);
      steps_[kept] = std::move(steps_[i]);
    }
    rows_.resize(kept);
    steps_.resize(kept);
    stride_ *= 2;
  }

  int64_t count_ = 0;
  int64_t stride_ = 1;
  std::vector<std::string> names_;
  std::vector<Json> steps_;
  std::vector<std::vector<Json>> rows_;
};

class History {
 public:
  explicit History(std::string log) : log_(std::move(log)) {}

  void add(const Json& line) {
    const std::string& type = line["type"].get_ref<const std::string&>();
    const bool has_step = line.contains("step") && line["step"].is_number_integer();
    if (type == "header" || type == "resume") {
      add_settings(line);
      if (type == "resume" && has_step) {
        result_["resumes"].push_back(line["step"]);
        // Adds the checkpoint from which the run has resumed, because the log may lack its line.
        // An asynchronous checkpoint is logged after steps that follow it. A resumed run removes
        // the first line of such a step and all lines after it, perhaps also the checkpoint's line.
        Json& saved = result_["checkpoints"];
        if (saved.empty() || saved.back() != line["step"]) saved.push_back(line["step"]);
      }
    } else if (type == "step" && has_step) {
      ++steps_;
      series_.add(line);
      medians_.add(line);
      if (line.value("skipped", false)) result_["skipped"].push_back(line["step"]);
    } else if (type == "eval" && has_step) {
      evaluations_.add(line);
      if (line.value("best", false)) result_["best"] = line["step"];
    } else if (type == "norms" && has_step && line.contains("norms")) {
      norms_.add(line);
    } else if (type == "save" && has_step && !line.contains("failed")) {
      result_["saves"].push_back(line["step"]);
    } else if (type == "checkpoint" && has_step && line.contains("path")) {
      result_["checkpoints"].push_back(line["step"]);
    } else if (type == "summary" || type == "timeline" || type == "confusion" ||
               type == "mistakes") {
      result_[type] = line;
    }
  }

  Json json() {
    if (steps_ == 0) fail_input("{}: the run has logged no step yet", log_);
    result_["steps"] = {
        {"count", steps_}, {"series", series_.json()}, {"medians", medians_.json()}};
    result_["evals"] = evaluations_.json();
    result_["norms"] = norms_.json();
    return std::move(result_);
  }

 private:
  // A resumed run may have another number of ranks and another ZeRO stage, so its settings replace
  // the header's.
  void add_settings(const Json& line) {
    Json settings = line;
    if (settings.contains("layout")) {
      result_["layout"] = std::move(settings["layout"]);
      settings.erase("layout");
    }
    for (const auto& [name, value] : settings.items()) {
      if (name != "type" && name != "step") result_["header"][name] = value;
    }
  }

  std::string log_;
  Json result_ = Json::object();
  int64_t steps_ = 0;
  SeriesByName series_;
  Medians medians_;
  SeriesByName evaluations_;
  Norms norms_;
};

}  // namespace

Json read_history(const std::string& log) {
  History history(log);
  read_log(log, [&](const Json& line) { history.add(line); });
  return history.json();
}

}  // namespace tessera::train
