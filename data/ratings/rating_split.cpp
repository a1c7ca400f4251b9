#include "data/ratings/rating_split.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/context.h"
#include "core/error.h"
#include "core/random.h"
#include "data/files/text_lines.h"

namespace tessera::data {
namespace {

// One byte for each rating, not one bit, because threads write neighbouring marks at the same time.
using Marks = std::vector<uint8_t>;

template <class T>
bool read_number(std::string_view text, T& value) {
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && last == end;
}

// Moves the marked values to the result, and closes the gaps in `values`. The caller splits the
// arrays of the ratings one after another, so that peak memory exceeds the ratings' size by one
// array at most.
template <class T>
std::vector<T> take_marked(std::vector<T>& values, const Marks& marks, size_t count) {
  std::vector<T> taken;
  taken.reserve(values.empty() ? 0 : count);
  size_t kept = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (marks[i] != 0) {
      taken.push_back(values[i]);
    } else {
      values[kept++] = values[i];
    }
  }
  values.resize(kept);
  values.shrink_to_fit();
  return taken;
}

Ratings take_marked(Ratings& ratings, const Marks& marks) {
  const auto count = static_cast<size_t>(std::ranges::count(marks, 1));
  Ratings taken;
  taken.users = take_marked(ratings.users, marks, count);
  taken.items = take_marked(ratings.items, marks, count);
  taken.values = take_marked(ratings.values, marks, count);
  taken.times = take_marked(ratings.times, marks, count);
  taken.time_rests = take_marked(ratings.time_rests, marks, count);
  return taken;
}

// Returns true if rating b counts as later than rating a. Rating b must come after rating a in the
// file. If times are equal or absent, the order in the file decides, so the result is true.
bool is_later(const Ratings& ratings, uint32_t a, uint32_t b) {
  return ratings.times.empty() || !ratings.is_earlier(b, a);
}

// Returns the indices of the ratings, grouped by user. Within a group, the order is that of the
// file.
std::vector<uint32_t> grouped_by_user(const Ratings& ratings, int64_t users) {
  std::vector<uint32_t> next(static_cast<size_t>(users) + 1);
  for (const int32_t user : ratings.users) ++next[static_cast<size_t>(user) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<uint32_t> order(ratings.users.size());
  for (uint32_t i = 0; i < ratings.users.size(); ++i) {
    order[next[static_cast<size_t>(ratings.users[i])]++] = i;
  }
  return order;
}

void mark_fold(const Ratings& ratings, const RatingSplit& split, uint64_t seed, Marks& marks) {
  const auto count = ratings.size();
  const auto folds = static_cast<uint64_t>(split.folds);
  const auto fold = static_cast<uint64_t>(split.fold - 1);
#pragma omp parallel for schedule(static) num_threads(thread_count())
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t place =
        place_of_rating(static_cast<uint64_t>(i), static_cast<uint64_t>(count), seed);
    marks[static_cast<size_t>(i)] = place % folds == fold;
  }
}

void mark_last(const Ratings& ratings, int64_t users, Marks& marks) {
  std::vector<uint32_t> counts(static_cast<size_t>(users));
  std::vector<uint32_t> last(static_cast<size_t>(users));
  for (uint32_t i = 0; i < ratings.users.size(); ++i) {
    const auto user = static_cast<size_t>(ratings.users[i]);
    if (counts[user]++ == 0 || is_later(ratings, last[user], i)) last[user] = i;
  }
  for (size_t user = 0; user < counts.size(); ++user) {
    if (counts[user] > 1) marks[last[user]] = 1;
  }
}

void mark_latest(const Ratings& ratings, double fraction, Marks& marks) {
  TESSERA_CHECK(!ratings.times.empty(), "ratings: the split time:F needs times");
  const auto held =
      static_cast<int64_t>(std::floor(static_cast<double>(ratings.size()) * fraction));
  std::vector<uint32_t> order(marks.size());
  std::iota(order.begin(), order.end(), 0);
  const auto first = order.end() - held;
  std::nth_element(order.begin(), first, order.end(), [&](uint32_t a, uint32_t b) {
    return ratings.is_earlier(a, b) || (!ratings.is_earlier(b, a) && a < b);
  });
  std::for_each(first, order.end(), [&](uint32_t i) { marks[i] = 1; });
}

}  // namespace

RatingSplit parse_rating_split(const std::string& text) {
  RatingSplit split;
  const std::string_view view = text;
  if (text == "none") return split;
  split.kind = RatingSplit::Kind::last;
  if (text == "last") return split;
  split.kind = RatingSplit::Kind::time;
  if (text.starts_with("time:") && read_number(view.substr(5), split.fraction) &&
      split.fraction > 0.0 && split.fraction < 1.0) {
    return split;
  }
  split.kind = RatingSplit::Kind::fold;
  const size_t slash = std::min(view.find('/'), view.size());
  if (text.starts_with("fold:") && slash > 5 && slash < view.size() &&
      read_number(view.substr(5, slash - 5), split.fold) &&
      read_number(view.substr(slash + 1), split.folds) && split.folds >= 2 && split.fold >= 1 &&
      split.fold <= split.folds) {
    return split;
  }
  fail_input(
      "split is {}, expected fold:k/K with 1 <= k <= K and K >= 2, last, time:F with "
      "0 < F < 1, or none",
      excerpt(text));
}

int64_t drop_duplicates(Ratings& ratings, int64_t users, int64_t items) {
  Marks dropped(ratings.users.size());
  // The loop visits the ratings of one user after another. user_of[item] is the most recently
  // visited user who rated the item. kept[item] is the index of the latest rating that this user
  // gave the item, among the ratings visited so far.
  std::vector<int32_t> user_of(static_cast<size_t>(items), -1);
  std::vector<uint32_t> kept(static_cast<size_t>(items));
  bool any = false;
  for (const uint32_t i : grouped_by_user(ratings, users)) {
    const int32_t user = ratings.users[i];
    const auto item = static_cast<size_t>(ratings.items[i]);
    if (user_of[item] != user) {
      user_of[item] = user;
      kept[item] = i;
      continue;
    }
    any = true;
    const bool later = is_later(ratings, kept[item], i);
    dropped[later ? std::exchange(kept[item], i) : i] = 1;
  }
  return any ? take_marked(ratings, dropped).size() : 0;
}

uint64_t place_of_rating(uint64_t index, uint64_t count, uint64_t seed) {
  return permuted(index, count, seed, "folds of ratings", 0);
}

Ratings hold_out(Ratings& ratings, const RatingSplit& split, uint64_t seed, int64_t users) {
  if (split.kind == RatingSplit::Kind::none) return {};
  Marks marks(ratings.users.size());
  switch (split.kind) {
    case RatingSplit::Kind::fold:
      mark_fold(ratings, split, seed, marks);
      break;
    case RatingSplit::Kind::last:
      mark_last(ratings, users, marks);
      break;
    default:
      mark_latest(ratings, split.fraction, marks);
  }
  return take_marked(ratings, marks);
}

}  // namespace tessera::data
