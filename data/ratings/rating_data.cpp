#include "data/ratings/rating_data.h"

#include "core/error.h"
#include "core/text/number_text.h"
#include "data/ratings/rating_file.h"
#include "data/ratings/rating_split.h"

namespace tessera::data {
namespace {

std::vector<std::string> counted_ids(int64_t count) {
  std::vector<std::string> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = std::to_string(i + 1);
  return ids;
}

RatingData draw(const DrawnRatingOptions& options) {
  return {.format = "drawn",
          .train = PlantedRatings(options).draw(),
          .user_ids = counted_ids(options.users),
          .item_ids = counted_ids(options.items)};
}

void check_parts(const RatingData& data, const RatingSplit& split, const std::string& where) {
  const int64_t train = data.train.size();
  const int64_t validation = data.validation.size();
  if (train > 0 && (validation > 0 || split.kind == RatingSplit::Kind::none)) return;
  fail_input(
      "{}: the split {} leaves {} of {} ratings to train on and {} to validate, expected "
      "some of each",
      where, data.split, train, train + validation, validation);
}

}  // namespace

std::string RatingData::description() const {
  std::string text =
      fmt::format("{} of {} by {}: {} to train on, {} to validate",
                  counted(train.size() + validation.size(), has_ratings ? "rating" : "interaction"),
                  counted(items(), "item"), counted(users(), "user"), grouped(train.size()),
                  grouped(validation.size()));
  if (dropped > 0) {
    text += fmt::format("; {} more dropped, because a later one has the same user and item",
                        grouped(dropped));
  }
  return text;
}

RatingData open_rating_data(const RatingDataOptions& options) {
  const RatingSplit split = parse_rating_split(options.split);
  if (options.path.empty() && !options.columns.empty()) {
    fail_input("columns are given without a path: drawn ratings have no file");
  }
  const std::string where = options.path.empty() ? "the drawn ratings" : options.path;
  RatingData data =
      options.path.empty() ? draw(options.drawn) : read_rating_file(options.path, options.columns);
  data.split = options.split;
  data.dropped = drop_duplicates(data.train, data.users(), data.items());
  if (split.kind == RatingSplit::Kind::time && data.train.times.empty()) {
    fail_input("{}: the split {} needs times, and these ratings have none", where, data.split);
  }
  data.validation = hold_out(data.train, split, options.seed, data.users());
  check_parts(data, split, where);
  return data;
}

}  // namespace tessera::data
