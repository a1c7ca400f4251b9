#include <algorithm>
#include <cmath>
#include <filesystem>
#include <stdexcept>

#include "core/error.h"
#include "core/text/utf8.h"
#include "data/files/text_lines.h"
#include "data/ratings/item_titles.h"
#include "data/ratings/rating_data.h"
#include "data/ratings/rating_digest.h"
#include "tests/hostile/readers.h"

namespace tessera::hostile {
namespace {

namespace fs = std::filesystem;

// Returns lines of user, item, rating and time below a header. One user in seven is not a number.
std::string table(const std::string& header, const std::string& separator, bool quotes = false) {
  std::string text = header;
  for (int i = 0; i < 60; ++i) {
    const std::string user = i % 7 == 3 ? fmt::format("u{}", i % 7) : std::to_string(i % 7);
    const std::string item = quotes ? fmt::format("\"{}, \"\"x\"\"\"", i) : std::to_string(i * 5);
    text += fmt::format("{1}{0}{2}{0}{3}{0}{4}\n", separator, user, item, i % 10 * 0.5, 1e9 + i);
  }
  return text;
}

void check_ids(const std::vector<std::string>& ids) {
  for (const std::string& id : ids) {
    if (!id.empty() && id.size() <= 256 && is_utf8(id)) continue;
    throw std::logic_error("an id is empty, too long or not UTF-8");
  }
}

void check_part(const data::RatingData& data, const data::Ratings& part) {
  const auto size = part.users.size();
  if (part.items.size() != size || part.values.size() != size ||
      (part.times.size() != size && !part.times.empty())) {
    throw std::logic_error("the arrays differ in length");
  }
  for (size_t i = 0; i < size; ++i) {
    const bool inside = part.users[i] >= 0 && part.users[i] < data.users() && part.items[i] >= 0 &&
                        part.items[i] < data.items();
    const bool finite =
        std::isfinite(part.values[i]) && (part.times.empty() || std::isfinite(part.times[i]));
    if (!inside || !finite) throw std::logic_error("a rating has no user, item, value or time");
  }
}

// Reads the ratings with each kind of split. A file columns.txt is read with the option `columns`.
// This option names no column of times here, so the ratings of columns.txt cannot be split by time.
void read_ratings(const std::string& folder) {
  const bool named = fs::symlink_status(folder + "/columns.txt").type() != fs::file_type::not_found;
  data::RatingDataOptions options{.path = named ? folder + "/columns.txt" : folder,
                                  .columns = named ? "header:item,-,user,rating" : ""};
  for (const char* split : {"none", "last", "fold:2/3", "time:0.5"}) {
    options.split = split;
    if (named && options.split == "time:0.5") continue;
    const data::RatingData data = data::open_rating_data(options);
    check_ids(data.user_ids);
    check_ids(data.item_ids);
    check_part(data, data.train);
    check_part(data, data.validation);
    if (data.train.size() == 0 || data::digest_of_ratings(data) == 0) {
      throw std::logic_error("there are no ratings to train on");
    }
  }
}

void read_titles(const std::string& folder) {
  for (const auto& [id, title] : data::read_item_titles(folder + "/titles")) {
    if (id.empty() || !is_utf8(id) || !is_utf8(title)) {
      throw std::logic_error("an item has no id, or a title that is not UTF-8");
    }
  }
}

std::string latin1_titles() {
  std::string text;
  for (int i = 0; i < 40; ++i) text += fmt::format("{}|Title {} \xE9|1995||url|0|1\n", i, i * 3);
  return text;
}

std::string csv_titles() {
  std::string text = "movieId,title,genres\n";
  for (int i = 0; i < 40; ++i) text += fmt::format("{},\"Title, \"\"{}\"\"\",A|B\n", i, i);
  return text;
}

}  // namespace

std::vector<Reader> rating_readers() {
  const std::string inter = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n";
  const std::string csv = "userId,movieId,rating,timestamp\n";
  const std::string recbole = "item_id:token\tmovie_title:token_seq\n1\tA (1995)\n2\tB \xC3\xA9\n";
  return {{"ratings",
           {{{"u.data", table("", "\t"), Form::text}},
            {{"ratings.dat", table("", "::"), Form::text}},
            {{"ratings.csv", table(csv, ",", true), Form::text}},
            {{"ml.inter", table(inter, "\t"), Form::text}},
            {{"columns.txt", table("a;b;c;d\n", ";", true), Form::text}},
            {{"u.data.gz", table("", "\t"), Form::gzip}},
            {{"ratings.csv.gz", table(csv, ","), Form::gzip}}},
           read_ratings},
          {"item_titles",
           {{{"titles", latin1_titles(), Form::text}},
            {{"titles", "1::A (1995)::Drama\n2::B \xE9::Comedy\n", Form::text}},
            {{"titles", csv_titles(), Form::text}},
            {{"titles", recbole, Form::text}},
            {{"titles", latin1_titles(), Form::gzip}}},
           read_titles}};
}

}  // namespace tessera::hostile
