#include "data/ratings/item_titles.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/text/control_character.h"
#include "core/text/utf8.h"
#include "data/files/text_fields.h"
#include "data/files/text_lines.h"

namespace tessera::data {
namespace {

struct TitleLayout {
  std::string separator;
  size_t id = 0;  // index of the field
  size_t title = 1;
  size_t fields = 0;  // number of fields in every line
  bool has_header = false;
  bool may_be_latin1 = false;
};

// Finds two fields of a header: the first for which `is_id` is true, and the first for which
// `is_title` is true.
template <class IsId, class IsTitle>
TitleLayout layout_of_header(const TextLines& lines, std::string_view header, const char* separator,
                             const IsId& is_id, const IsTitle& is_title) {
  FieldSplitter splitter(separator);
  const auto fields = splitter.split(header, lines);
  const auto id = std::ranges::find_if(fields, is_id);
  const auto title = std::ranges::find_if(fields, is_title);
  if (id == fields.end() || title == fields.end()) {
    lines.refuse("the header has no field for {}: {}", id == fields.end() ? "ids" : "titles",
                 excerpt(header));
  }
  return {.separator = separator,
          .id = static_cast<size_t>(id - fields.begin()),
          .title = static_cast<size_t>(title - fields.begin()),
          .fields = fields.size(),
          .has_header = true};
}

TitleLayout find_layout(const TextLines& lines, std::string_view line) {
  if (line.find(":token") != line.npos) {
    return layout_of_header(
        lines, line, "\t", [](std::string_view field) { return field == "item_id:token"; },
        [](std::string_view field) {
          const std::string_view name = field.substr(0, field.find(':'));
          return name == "title" || name == "name" || name.ends_with("_title");
        });
  }
  for (const char* separator : {"::", "|"}) {
    if (line.find(separator) == line.npos) continue;
    FieldSplitter splitter(separator);
    return {.separator = separator,
            .fields = splitter.split(line, lines).size(),
            .may_be_latin1 = true};
  }
  if (line.find(',') != line.npos) {
    return layout_of_header(
        lines, line, ",",
        [](std::string_view field) {
          return field == "movieId" || field == "itemId" || field == "item_id";
        },
        [](std::string_view field) { return field == "title"; });
  }
  lines.refuse(
      "begins with {}, expected ID|TITLE, ID::TITLE, a header such as movieId,title,genres, "
      "or that of an .item file",
      excerpt(line));
}

std::string from_latin1(std::string_view text) {
  std::string utf8;
  for (const char c : text) {
    const auto code = static_cast<uint8_t>(c);
    if (code < 0x80) {
      utf8 += c;
    } else {
      utf8 += static_cast<char>(0xC0 | code >> 6);
      utf8 += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return utf8;
}

}  // namespace

std::map<std::string, std::string> read_item_titles(const std::string& path) {
  TextLines lines(path, TextLines::Encoding::unknown);
  std::string_view line;
  if (!lines.next(line)) fail_input("{}: is empty", path);
  const TitleLayout layout = find_layout(lines, line);
  if (layout.has_header && !lines.next(line)) fail_input("{}: has a header and no titles", path);
  FieldSplitter splitter(layout.separator);
  std::map<std::string, std::string> titles;
  bool all_utf8 = true;
  do {
    all_utf8 = all_utf8 && is_utf8(line);
    if (!all_utf8 && !layout.may_be_latin1) lines.refuse("is not UTF-8: {}", excerpt(line));
    const auto fields = splitter.split(line, lines);
    if (fields.size() != layout.fields) {
      lines.refuse("has {} fields separated by {}, expected {}", fields.size(),
                   name_of_separator(layout.separator), layout.fields);
    }
    const std::string_view id = fields[layout.id];
    if (id.empty()) lines.refuse("has an empty item");
    for (const std::string_view text : {id, fields[layout.title]}) {
      if (has_control_character(text)) lines.refuse("has a control character: {}", excerpt(text));
    }
    if (!titles.emplace(id, fields[layout.title]).second) {
      lines.refuse("has the item {} a second time", excerpt(id));
    }
  } while (lines.next(line));
  if (all_utf8) return titles;
  std::map<std::string, std::string> converted;
  for (const auto& [id, title] : titles) converted.emplace(from_latin1(id), from_latin1(title));
  return converted;
}

}  // namespace tessera::data
