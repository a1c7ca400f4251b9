#include "data/ratings/rating_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/text/input_file.h"
#include "data/file_names.h"
#include "data/files/text_fields.h"
#include "data/files/text_lines.h"
#include "data/ratings/id_table.h"
#include "data/ratings/rating_layout.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;
__extension__ using int128 = __int128;

// Removes one plus at the beginning, which std::from_chars does not read. Keeps the plus of "+-5",
// so that this text is refused.
std::string_view without_plus(std::string_view text) {
  const bool has_plus = text.starts_with('+') && !text.starts_with("+-");
  return has_plus ? text.substr(1) : text;
}

// Returns what to do if the first line is a header that was read as ratings.
std::string_view advice_on_header(const RatingLayout& layout) {
  const bool has_columns = layout.format == "columns";
  return has_columns ? "; if the line has names, put 'header:' before the columns"
                     : "; if the line has names, name the columns, such as "
                       "header:user,item,rating,time";
}

template <class T>
T number_in(std::string_view text, std::string_view name, const TextLines& lines,
            const RatingLayout& layout) {
  T value{};
  const std::string_view digits = without_plus(text);
  const char* const end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, value);
  if (error == std::errc::result_out_of_range && last == end) {
    lines.refuse("the {} {} is too large or too small", name, excerpt(text));
  }
  if (error != std::errc{} || last != end || !std::isfinite(value)) {
    lines.refuse("the {} is {}, expected a number{}", name, excerpt(text),
                 lines.number() > 1 ? "" : advice_on_header(layout));
  }
  return value;
}

class RatingParser {
 public:
  RatingParser(const RatingLayout& layout, const TextLines& lines)
      : layout_(layout), lines_(lines), splitter_(layout.separator) {}

  void add(std::string_view line) {
    const auto fields = splitter_.split(line, lines_);
    if (fields.size() != layout_.fields.size()) {
      lines_.refuse("has {} fields separated by {}, expected {}: {}", fields.size(),
                    name_of_separator(layout_.separator), layout_.fields.size(), layout_.names());
    }
    if (ratings_.users.size() == most_ratings) {
      lines_.refuse("is one rating too many, expected at most {}", most_ratings);
    }
    for (size_t i = 0; i < fields.size(); ++i) take(layout_.fields[i], fields[i]);
  }

  // Sorts the ids, renumbers the ratings' users and items accordingly, and returns the ratings.
  RatingData finish() {
    RatingData data{.format = layout_.format, .train = std::move(ratings_)};
    renumber(data.train.users, users_.sort());
    renumber(data.train.items, items_.sort());
    data.user_ids = users_.take_ids();
    data.item_ids = items_.take_ids();
    data.has_ratings = layout_.has(RatingField::rating);
    if (!data.has_ratings) data.train.values.assign(data.train.users.size(), 1.0f);
    return data;
  }

 private:
  static constexpr size_t most_ratings = std::numeric_limits<uint32_t>::max();

  void take(RatingField field, std::string_view text) {
    switch (field) {
      case RatingField::skipped:
        break;
      case RatingField::user:
        ratings_.users.push_back(users_.number_of(text, lines_));
        break;
      case RatingField::item:
        ratings_.items.push_back(items_.number_of(text, lines_));
        break;
      case RatingField::rating:
        ratings_.values.push_back(number_in<float>(text, "rating", lines_, layout_));
        break;
      case RatingField::time:
        add_time(text);
        break;
    }
  }

  // Keeps a whole number exactly. A time with a fraction or an exponent is rounded to double.
  void add_time(std::string_view text) {
    int64_t rest = 0;
    if (without_plus(text).find_first_not_of("-0123456789") == std::string_view::npos) {
      const auto whole = number_in<int64_t>(text, "time", lines_, layout_);
      ratings_.times.push_back(static_cast<double>(whole));
      // Subtract in 128 bits, because the double may be 2^63. The rest is from -512 to 512.
      rest = static_cast<int64_t>(whole - static_cast<int128>(ratings_.times.back()));
    } else {
      ratings_.times.push_back(number_in<double>(text, "time", lines_, layout_));
    }
    std::vector<int16_t>& rests = ratings_.time_rests;
    if (rest == 0 && rests.empty()) return;
    rests.resize(ratings_.times.size() - 1);
    rests.push_back(static_cast<int16_t>(rest));
  }

  static void renumber(std::vector<int32_t>& numbers, const std::vector<int32_t>& new_numbers) {
    for (int32_t& number : numbers) number = new_numbers[static_cast<size_t>(number)];
  }

  const RatingLayout& layout_;
  const TextLines& lines_;
  FieldSplitter splitter_;
  IdTable users_{"user"};
  IdTable items_{"item"};
  Ratings ratings_;
};

// Returns the path of a folder's file of ratings. Throws InputError unless the folder has exactly
// one such file.
std::string file_in(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string file = entry->path().filename();
    std::error_code ignored;
    if (names_rating_file(file) && !entry->is_directory(ignored)) found.push_back(file);
  }
  if (error) fail_with_reason(error.value(), folder + ": cannot be read");
  std::sort(found.begin(), found.end());
  if (found.empty()) {
    fail_input(
        "{}: has no ratings in a known format. Looked for: u.data, ratings.dat, "
        "ratings.csv (MovieLens) and *.inter (RecBole), with .gz or without; or give a file "
        "and name its columns",
        folder);
  }
  if (found.size() > 1) {
    fail_input("{}: has {}, expected one file of ratings: give the path of one", folder,
               fmt::join(found, " and "));
  }
  return fs::path(folder) / found.front();
}

}  // namespace

RatingData read_rating_file(const std::string& path, const std::string& columns) {
  std::error_code error;
  TextLines lines(fs::is_directory(path, error) ? file_in(path) : path);
  std::string_view line;
  if (!lines.next(line)) fail_input("{}: is empty", lines.path());
  const RatingLayout layout = find_rating_layout(lines, line, columns);
  if (layout.has_header && !lines.next(line)) {
    fail_input("{}: has a header and no ratings", lines.path());
  }
  RatingParser parser(layout, lines);
  do {
    parser.add(line);
  } while (lines.next(line));
  return parser.finish();
}

}  // namespace tessera::data
