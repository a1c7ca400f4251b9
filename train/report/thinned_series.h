// A curve with a bounded number of points, of as many steps as a run has. While there are few
// points, all are kept. Then each of the least and the largest of every 2 neighbours, of every 4,
// and so on, so that a curve that is drawn from them has every spike.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::train {

class ThinnedSeries {
 public:
  struct Point {
    double x = 0;
    double y = 0;
  };

  /// Keeps at most 2 * most_bins + 1 points.
  explicit ThinnedSeries(size_t most_bins = 2000) : most_bins_(most_bins) {}

  /// Adds a point. Values of x must not decrease.
  void add(double x, double y);

  /// The kept points, in order of x. The last point that was added is always one of them.
  std::vector<Point> points() const;
  /// The number of points that were added.
  int64_t count() const { return count_; }

 private:
  struct Bin {
    Point low;
    Point high;
  };
  static void include(Bin& bin, const Point& point);
  void merge_pairs();

  size_t most_bins_;
  int64_t width_ = 1;  // points in a full bin
  int64_t count_ = 0;
  std::vector<Bin> bins_;
  std::optional<Point> last_;
};

}  // namespace tessera::train
