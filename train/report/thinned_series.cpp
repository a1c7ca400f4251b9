#include "train/report/thinned_series.h"

#include <utility>

namespace tessera::train {

void ThinnedSeries::include(Bin& bin, const Point& point) {
  if (point.y < bin.low.y) bin.low = point;
  if (point.y > bin.high.y) bin.high = point;
}

void ThinnedSeries::add(double x, double y) {
  const Point point{x, y};
  if (count_ % width_ == 0) {
    if (bins_.size() == most_bins_) merge_pairs();
    if (count_ % width_ == 0) {
      bins_.push_back({point, point});
    } else {
      include(bins_.back(), point);
    }
  } else {
    include(bins_.back(), point);
  }
  ++count_;
  last_ = point;
}

void ThinnedSeries::merge_pairs() {
  std::vector<Bin> merged;
  for (size_t i = 0; i < bins_.size(); i += 2) {
    merged.push_back(bins_[i]);
    if (i + 1 == bins_.size()) break;
    include(merged.back(), bins_[i + 1].low);
    include(merged.back(), bins_[i + 1].high);
  }
  bins_ = std::move(merged);
  width_ *= 2;
}

std::vector<ThinnedSeries::Point> ThinnedSeries::points() const {
  std::vector<Point> result;
  for (const auto& [low, high] : bins_) {
    const auto& [first, second] = low.x <= high.x ? std::pair(low, high) : std::pair(high, low);
    result.push_back(first);
    if (second.x != first.x) result.push_back(second);
  }
  if (last_ && result.back().x != last_->x) result.push_back(*last_);
  return result;
}

}  // namespace tessera::train
