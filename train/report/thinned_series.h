// A curve with a bounded number of points, for any number of steps. Neighbouring points are grouped
// in bins. A bin holds 1 point while the curve is short, then 2, 4 and so on as the curve grows.
// Each bin keeps only its lowest and its highest point. A drawing of the kept points therefore
// shows every spike.
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

  /// Returns the kept points, in order of x, and then the point that was added last, unless a kept
  /// point has the same x.
  std::vector<Point> points() const;
  /// Returns the number of points that were added.
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
