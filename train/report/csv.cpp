#include "train/report/csv.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text/output_file.h"
#include "train/report/log_reader.h"

namespace tessera::train {
namespace {

bool is_row(const nlohmann::ordered_json& line) {
  const std::string& type = line["type"].get_ref<const std::string&>();
  return (type == "step" || type == "eval") &&
         line.value("step", nlohmann::ordered_json()).is_number();
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? "\"\"" : std::string(1, c);
  return result + '"';
}

std::string cell(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "";  // null stands for a number that is not finite
  return value.is_string() ? quoted(value.get_ref<const std::string&>()) : value.dump();
}

// Quotes a column's name only if it needs quotes, so that plain names stay easy to read.
std::string title(const std::string& name) {
  return name.find_first_of(",\"\r\n") == std::string::npos ? name : quoted(name);
}

// Lines of steps and of evaluations may have members of the same name with different meanings, as
// `epoch` has, so these have columns of their own. Only `step` has one column for both.
struct Column {
  bool of_evaluation;
  std::string name;
  auto operator<=>(const Column&) const = default;
};

Column column_of(const nlohmann::ordered_json& line, const std::string& name) {
  return {line["type"] == "eval" && name != "step", name};
}

std::string heading_of(const std::vector<Column>& columns) {
  std::string heading;
  for (const auto& [of_evaluation, name] : columns) {
    const bool needs_prefix =
        of_evaluation && std::ranges::find(columns, Column{false, name}) != columns.end();
    heading += (heading.empty() ? "" : ",") + title(needs_prefix ? "eval_" + name : name);
  }
  return heading;
}

// Writes one row per step. In the log, an evaluation follows the line of its step.
class Rows {
 public:
  Rows(OutputFile& file, std::vector<Column> columns) : file_(file), columns_(std::move(columns)) {
    file_.write(heading_of(columns_) + "\r\n");
  }

  void add(const nlohmann::ordered_json& line) {
    if (!row_.empty() && row_[column_of(line, "step")] != line["step"]) end_row();
    for (const auto& [name, value] : line.items()) row_.try_emplace(column_of(line, name), value);
  }

  void end_row() {
    if (row_.empty()) return;
    std::string text;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const auto found = row_.find(columns_[i]);
      text += (i == 0 ? "" : ",") + (found == row_.end() ? std::string() : cell(found->second));
    }
    file_.write(text + "\r\n");
    row_.clear();
  }

 private:
  OutputFile& file_;
  std::vector<Column> columns_;
  std::map<Column, nlohmann::ordered_json> row_;
};

}  // namespace

void write_csv(const std::string& log, const std::string& path) {
  // The first pass finds the columns. A log may be larger than memory, so it is read a second time.
  std::vector<Column> columns;
  bool has_step = false;
  read_log(log, [&](const nlohmann::ordered_json& line) {
    if (!is_row(line)) return;
    has_step = has_step || line["type"] == "step";
    for (const auto& [name, value] : line.items()) {
      if (name == "type" || value.is_structured()) continue;
      const Column column = column_of(line, name);
      if (std::ranges::find(columns, column) == columns.end()) columns.push_back(column);
    }
  });
  // A full disk may have left only the header of a log. A report refuses such a log too.
  if (!has_step) fail_input("{}: the run has logged no step yet", log);
  OutputFile file(path);
  Rows rows(file, columns);
  read_log(log, [&](const nlohmann::ordered_json& line) {
    if (is_row(line)) rows.add(line);
  });
  rows.end_row();
  file.commit();
}

}  // namespace tessera::train
