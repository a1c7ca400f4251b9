#include "data/ratings/rating_layout.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <optional>

#include "data/files/text_fields.h"

namespace tessera::data {
namespace {

constexpr std::array<std::string_view, 5> field_names = {"-", "user", "item", "rating", "time"};
constexpr std::string_view header_mark = "header:";

// Returns the field that headers call `name`; nullopt if there is no such field. Case, "_", "-" and
// spaces are ignored.
std::optional<RatingField> field_called(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == '_' || c == '-' || c == ' ') continue;
    plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::ranges::find(names, plain) != names.end();
  };
  if (is({"user", "userid"})) return RatingField::user;
  if (is({"item", "itemid", "movie", "movieid"})) return RatingField::item;
  if (is({"rating"})) return RatingField::rating;
  if (is({"time", "timestamp"})) return RatingField::time;
  return {};
}

// Returns what is wrong with the list of fields, as part of a sentence; empty if nothing is wrong.
std::string fault_of(const std::vector<RatingField>& fields) {
  for (const RatingField field :
       {RatingField::user, RatingField::item, RatingField::rating, RatingField::time}) {
    const std::string_view name = field_names[static_cast<size_t>(field)];
    const auto times = std::ranges::count(fields, field);
    if (times > 1) return fmt::format("has the column {} {} times", name, times);
    if (times == 0 && (field == RatingField::user || field == RatingField::item)) {
      return fmt::format("has no column {}", name);
    }
  }
  return {};
}

std::string name_without_gz(const std::string& path) {
  std::string name = std::filesystem::path(path).filename();
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  return name;
}

RatingLayout with_header_checked(RatingLayout layout, const TextLines& lines) {
  const std::string fault = fault_of(layout.fields);
  if (!fault.empty()) lines.refuse("the header {}", fault);
  return layout;
}

// Reads the layout from the header of RecBole's file of interactions: NAME:TYPE fields between
// tabs.
RatingLayout inter_layout(const TextLines& lines, std::string_view header) {
  RatingLayout layout{.format = "inter", .separator = "\t", .fields = {}, .has_header = true};
  FieldSplitter splitter(layout.separator);
  for (const std::string_view text : splitter.split(header, lines)) {
    const size_t colon = text.find(':');
    if (colon == text.npos) {
      lines.refuse("the header has the field {}, expected NAME:TYPE, such as user_id:token",
                   excerpt(text));
    }
    const auto field = field_called(text.substr(0, colon));
    if (!field) {
      lines.refuse(
          "the header has the field {}, expected user_id, item_id, rating or timestamp; "
          "or name the columns, such as header:user,item,-",
          excerpt(text));
    }
    const bool is_id = *field == RatingField::user || *field == RatingField::item;
    const std::string_view expected = is_id ? "token" : "float";
    if (text.substr(colon + 1) != expected) {
      lines.refuse("the header has the field {}, expected the type {}", excerpt(text), expected);
    }
    layout.fields.push_back(*field);
  }
  return with_header_checked(std::move(layout), lines);
}

RatingLayout csv_layout(const TextLines& lines, std::string_view header) {
  RatingLayout layout{.format = "csv", .separator = ",", .fields = {}, .has_header = true};
  FieldSplitter splitter(layout.separator);
  const auto texts = splitter.split(header, lines);
  if (std::ranges::none_of(texts, [](auto text) { return field_called(text).has_value(); })) {
    lines.refuse(
        "is not a header such as userId,movieId,rating,timestamp: {}; name the columns, such as "
        "user,item,rating,time, or header:user,item,rating,time if the line has other names",
        excerpt(header));
  }
  for (const std::string_view text : texts) {
    const auto field = field_called(text);
    if (!field) {
      lines.refuse(
          "the header has the column {}, expected userId, movieId (or itemId), rating and "
          "timestamp; or name the columns, such as header:user,item,rating,-",
          excerpt(text));
    }
    layout.fields.push_back(*field);
  }
  return with_header_checked(std::move(layout), lines);
}

// Returns the first separator that cuts the line into as many fields as there are columns. Throws
// InputError if there is no such separator.
std::string separator_of(const TextLines& lines, std::string_view line, size_t columns) {
  for (const char* separator : {"\t", "::", ";", ",", "|", " "}) {
    FieldSplitter splitter(separator);
    if (line.find(separator) == line.npos) continue;
    try {
      if (splitter.split(line, lines).size() == columns) return separator;
    } catch (const InputError&) {
      // The line's quotes do not fit this separator, but they may fit a later separator.
    }
  }
  lines.refuse(
      "does not have {} fields, one for each column, separated by tabs, '::', ';', ',', '|' or "
      "spaces: {}",
      columns, excerpt(line));
}

}  // namespace

RatingLayout parse_rating_columns(std::string_view columns) {
  RatingLayout layout{.format = "columns", .separator = {}, .fields = {}};
  layout.has_header = columns.starts_with(header_mark);
  std::string_view rest = columns;
  if (layout.has_header) rest.remove_prefix(header_mark.size());
  while (true) {
    const size_t length = std::min(rest.find(','), rest.size());
    const auto found = std::ranges::find(field_names, trimmed(rest.substr(0, length)));
    if (found == field_names.end()) {
      fail_input(
          "columns are {}, expected user, item, rating, time and - (skipped) separated "
          "by commas, such as user,item,rating,time, after 'header:' if the first line has names",
          excerpt(columns));
    }
    layout.fields.push_back(static_cast<RatingField>(found - field_names.begin()));
    if (length == rest.size()) break;
    rest.remove_prefix(length + 1);
  }
  const std::string fault = fault_of(layout.fields);
  if (!fault.empty()) fail_input("columns are {}: the list {}", excerpt(columns), fault);
  return layout;
}

bool RatingLayout::has(RatingField field) const {
  return std::ranges::find(fields, field) != fields.end();
}

std::string RatingLayout::names() const {
  std::vector<std::string_view> names;
  for (const RatingField field : fields) names.push_back(field_names[static_cast<size_t>(field)]);
  return fmt::format("{}", fmt::join(names, ", "));
}

RatingLayout find_rating_layout(const TextLines& lines, std::string_view first_line,
                                const std::string& columns) {
  if (!columns.empty()) {
    RatingLayout layout = parse_rating_columns(columns);
    layout.separator = separator_of(lines, first_line, layout.fields.size());
    return layout;
  }
  const bool is_inter = name_without_gz(lines.path()).ends_with(".inter");
  if (is_inter || first_line.find(":token") != first_line.npos) {
    return inter_layout(lines, first_line);
  }
  for (const char* separator : {"::", "\t"}) {
    if (first_line.find(separator) == first_line.npos) continue;
    return {
        .format = "movielens",
        .separator = separator,
        .fields = {RatingField::user, RatingField::item, RatingField::rating, RatingField::time}};
  }
  if (first_line.find(',') != first_line.npos) return csv_layout(lines, first_line);
  lines.refuse(
      "begins with {}, expected tabs or '::' between user, item, rating and time "
      "(MovieLens), a header such as userId,movieId,rating,timestamp, or that of a .inter "
      "file; or name the columns, such as user,item,rating,time",
      excerpt(first_line));
}

}  // namespace tessera::data
