#include "train/report/report_page.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/text/output_file.h"
#include "core/version.h"
#include "train/report/page_parts.h"
#include "train/report/run_history.h"

namespace tessera::train {
namespace {

constexpr std::string_view page_begin =
    "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
    "<meta name=\"generator\" content=\"Tessera report\">\n";

// In a <script> element, "</script" would end the data, and "<!--" would begin a comment. Therefore
// '<' is escaped. The result is valid JSON, because JSON has '<' only in strings.
std::string for_script(const nlohmann::ordered_json& data) {
  std::string text;
  using Json = nlohmann::ordered_json;
  for (const char c : data.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

void write_report_page(const std::vector<ReportedRun>& runs, const std::string& path) {
  nlohmann::ordered_json data = {{"version", version()}, {"runs", nlohmann::ordered_json::array()}};
  for (const auto& [log, name] : runs) {
    nlohmann::ordered_json run = read_history(log);
    run["name"] = name.empty() ? std::filesystem::path(log).stem().string() : name;
    data["runs"].push_back(std::move(run));
  }
  OutputFile file(path);
  file.write(page_begin);
  file.write(
      "<meta name=\"viewport\" content=\"width=device-width\">\n<title>Tessera: report</title>\n");
  file.write(fmt::format("<style>\n{}</style>\n<main id=\"page\"></main>\n", page_style));
  file.write("<noscript>This page draws its charts with JavaScript.</noscript>\n");
  file.write("<script type=\"application/json\" id=\"data\">");
  file.write(for_script(data));
  file.write("</script>\n");
  for (const std::string_view script : page_scripts) {
    file.write(fmt::format("<script>\n{}</script>\n", script));
  }
  file.write("</html>\n");
  file.commit();
}

bool is_report_page(const std::string& path) {
  // Opening a pipe would block until another process opens it for writing.
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  std::string begin(page_begin.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  return file.read(begin.data(), std::ssize(begin)) && begin == page_begin;
}

}  // namespace tessera::train
