#include "train/report/log_reader.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace tessera::train {
namespace {

// True if a text has more lists and objects within each other than any line of a log. They are
// counted before the text is parsed, because the library visits them by recursion.
bool too_deep(std::string_view text) {
  constexpr int most = 32;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') ++i;
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > most) return true;
  }
  return false;
}

}  // namespace

void read_log(const std::string& path,
              const std::function<void(const nlohmann::ordered_json&)>& visit) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail_input("{}: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail_input("{}: not a regular file, expected a log", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_input("{}: cannot be read: {}", path, std::strerror(errno));
  int64_t number = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    ++number;
    const auto json = too_deep(line) ? nlohmann::ordered_json()
                                     : nlohmann::ordered_json::parse(line, nullptr, false);
    const auto type = json.is_object() ? json.find("type") : json.end();
    const bool is_line = json.is_object() && type != json.end() && type->is_string();
    if (number == 1 && (!is_line || *type != "header")) {
      fail_input("{}: not the log of a run: its first line is no header", path);
    }
    if (!is_line) fail_input("{}: line {} is not a line of a log", path, number);
    try {
      visit(json);
    } catch (const nlohmann::json::exception& error) {
      fail_input("{}: line {} is not a line of a log: {}", path, number, error.what());
    }
  }
  if (file.bad()) fail_input("{}: reading failed: {}", path, std::strerror(errno));
  if (number == 0) fail_input("{}: not the log of a run: it has no whole line", path);
}

}  // namespace tessera::train
