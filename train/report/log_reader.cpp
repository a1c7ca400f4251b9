#include "train/report/log_reader.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text/input_file.h"

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

// Returns what is wrong with a line of type "step" or "eval", or an empty text. Reports leave out
// members that are not numbers. Without this check, a loss that is a text would be missing from the
// report without a message. Members that only some programs write are not checked.
std::string fault_of(const Json& line) {
  if (line["type"] != "step" && line["type"] != "eval") return "";
  for (const char* name : {"loss", "grad_norm", "lr", "val_loss"}) {
    const Json value = line.value(name, Json());
    if (value.is_number() || value.is_null()) continue;
    return fmt::format("{} is of type {}, expected a number or null", name, value.type_name());
  }
  const auto step = line.find("step");
  // The library stores an integer above INT64_MAX as an unsigned one.
  const bool is_large = step != line.end() && step->is_number_unsigned() &&
                        step->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  return is_large ? fmt::format("step is {}, which is too large", step->dump()) : "";
}

}  // namespace

Json parse_log_line(const std::string& line) {
  struct TooDeep {};
  const auto watch = [](int depth, Json::parse_event_t event, Json&) {
    using Event = Json::parse_event_t;
    constexpr int most = 32;  // limit for nested lists and objects; `depth` of the outermost is 0
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (begins && depth >= most) throw TooDeep();
    return true;
  };
  // The library takes a NUL for the end of the text, and would ignore what follows.
  if (line.find('\0') != std::string::npos) return Json(Json::value_t::discarded);
  try {
    return Json::parse(line, watch, false);
  } catch (const TooDeep&) {
    return Json(Json::value_t::discarded);
  }
}

bool is_log(const std::string& path) {
  // Opening a pipe would block until another process opens it for writing.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  constexpr std::string_view header = R"({"type":"header",)";
  std::string begin(header.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  return file.read(begin.data(), std::ssize(begin)) && begin == header;
}

void read_log(const std::string& path,
              const std::function<void(const nlohmann::ordered_json&)>& visit) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail_with_reason(errno, path);
  if (!S_ISREG(status.st_mode)) fail_input("{}: not a regular file, expected a log", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_with_reason(errno, path + ": cannot be read");
  int64_t number = 0;
  int64_t last_step = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    ++number;
    const Json json = parse_log_line(line);
    const auto type = json.is_object() ? json.find("type") : json.end();
    const bool is_line = json.is_object() && type != json.end() && type->is_string();
    if (number == 1 && (!is_line || *type != "header")) {
      fail_input(
          "{}: not the log of a run: its first line is not a header, {{\"type\":\"header\",...}}; "
          "give the FILE.jsonl that --log of the run has written",
          path);
    }
    if (!is_line) fail_input("{}: line {} is not a line of a log", path, number);
    const std::string fault = fault_of(json);
    if (!fault.empty()) fail_input("{}: line {} is not a line of a log: {}", path, number, fault);
    if (*type == "step" && json.value("step", Json()).is_number_integer()) {
      const auto step = json["step"].get<int64_t>();
      if (step <= last_step) {
        fail_input("{}: step {} follows step {}, expected a later step", path, step, last_step);
      }
      last_step = step;
    }
    try {
      visit(json);
    } catch (const nlohmann::json::exception& error) {
      fail_input("{}: line {} is not a line of a log: {}", path, number, error.what());
    }
  }
  if (file.bad()) fail("{}: reading failed: {}", path, std::strerror(errno));
  if (number == 0) fail_input("{}: not the log of a run: it has no whole line", path);
}

}  // namespace tessera::train
