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

// Writes one row per step. In the log, an evaluation follows the line of its step. The evaluation's
// values fill the columns that the step's line has left empty.
class Rows {
 public:
  Rows(OutputFile& file, std::vector<std::string> columns)
      : file_(file), columns_(std::move(columns)) {
    std::string heading;
    for (const std::string& column : columns_) {
      heading += (heading.empty() ? "" : ",") + title(column);
    }
    file_.write(heading + "\r\n");
  }

  void add(const nlohmann::ordered_json& line) {
    if (!row_.empty() && row_["step"] != line["step"]) end_row();
    for (const auto& [name, value] : line.items()) row_.try_emplace(name, value);
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
  std::vector<std::string> columns_;
  std::map<std::string, nlohmann::ordered_json> row_;
};

}  // namespace

void write_csv(const std::string& log, const std::string& path) {
  // The first pass finds the columns. A log may be larger than memory, so it is read a second time.
  std::vector<std::string> columns;
  bool has_step = false;
  read_log(log, [&](const nlohmann::ordered_json& line) {
    if (!is_row(line)) return;
    has_step = has_step || line["type"] == "step";
    for (const auto& [name, value] : line.items()) {
      if (name == "type" || value.is_structured()) continue;
      if (std::ranges::find(columns, name) == columns.end()) columns.push_back(name);
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
