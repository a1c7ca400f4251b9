#include "data/images/drawn_images.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/error.h"
#include "core/random.h"

namespace tessera::data {
namespace {

constexpr int side = static_cast<int>(drawn_shape.height);
constexpr int unit = 8;    // positions are in eighths of a pixel
constexpr int samples = 4;  // samples along a pixel's side, to smooth the edges of shapes
constexpr int turn = 1024;

using Color = std::array<int, 3>;

// Returns sin(2 pi angle / turn) in units of 1 / 4096, in integers, by the formula of Bhaskara I
// (7th century). The error of the sine is at most 0.0017, which is 7 units.
int sine(int angle) {
  constexpr int half = turn / 2;
  angle &= turn - 1;
  const int x = angle % half;
  const int product = x * (half - x);
  const int value = 16 * product * 64 / ((5 * half * half - 4 * product) / 64);
  return angle < half ? value : -value;
}
int cosine(int angle) { return sine(angle + turn / 4); }

// True if the point (u, v), in units of 1 / 4096 of the radius, is inside the shape.
bool inside(int shape, int u, int v) {
  constexpr int one = 4096;
  const auto disc = [](int x, int y, int radius) { return x * x + y * y <= radius * radius; };
  const int across = std::abs(u);
  const int along = std::abs(v);
  switch (shape) {
    case 0: return disc(u, v, 3400);
    case 1: return std::max(across, along) <= 2900;
    case 2: return v <= one / 2 && 3547 * across - 2048 * v <= 2048 * one;
    case 3: return std::min(across, along) <= 1150 && std::max(across, along) <= 3900;
    case 4: return disc(u, v, 3700) && !disc(u, v, 2000);
    case 5: {
      // A point of the star is on the inner side of at least four of the five lines of a pentagram.
      constexpr int distance = 1266 * one;
      const int within = (one * v <= distance) + (3896 * u + 1266 * v <= distance) +
                         (1266 * v - 3896 * u <= distance) + (2408 * u - 3314 * v <= distance) +
                         (-2408 * u - 3314 * v <= distance);
      return within >= 4;
    }
    case 6: return v >= -1600 && disc(u, v + 1600, 3800);
    case 7: return disc(u, v, 3800) && !disc(u - 1900, v, 3000);
    case 8: return across <= 3900 && along <= 1000;
    default: return across <= 1000 ? along <= 3500 : across <= 3500 && v >= 1700 && v <= 3500;
  }
}

// Draws one picture from a stream of random numbers.
class Drawing {
 public:
  Drawing(RandomStream stream, int shape, uint8_t* out)
      : stream_(stream), shape_(shape), out_(out) {}

  void draw() {
    const Color from = color(0, 159);
    const Color to = between(0, 1) == 0 ? from : color(0, 159);
    background(from, to);
    for (int specks = between(0, 3); specks > 0; --specks) {
      place_ = {between(0, side * unit), between(0, side * unit), between(unit, 2 * unit), 0};
      fill(0, color(0, 255));
    }
    // The shape is lighter than both colours of the background.
    Color ink = color(64, 255);
    while (light(ink) < light(from) + 120 || light(ink) < light(to) + 120) ink = color(64, 255);
    const int radius = between(8 * unit, 14 * unit);
    const int least = radius - unit;
    const int most = side * unit - least;
    place_ = {between(least, most), between(least, most), radius, between(0, turn - 1)};
    fill(shape_, ink);
    noise(between(4, 40));
  }

 private:
  struct Place {
    int x, y, radius, angle;
  };

  // Returns a number that is uniform in [least, most].
  int between(int least, int most) {
    return least + static_cast<int>(stream_.below(static_cast<uint64_t>(most - least + 1)));
  }
  Color color(int least, int most) {
    return {between(least, most), between(least, most), between(least, most)};
  }
  static int light(const Color& color) { return color[0] + color[1] + color[2]; }
  uint8_t* pixel(int x, int y) { return out_ + (y * side + x) * 3; }

  void background(const Color& from, const Color& to) {
    const int angle = between(0, turn - 1);
    const int dx = cosine(angle), dy = sine(angle);
    for (int y = 0; y < side; ++y) {
      for (int x = 0; x < side; ++x) {
        // The share of `to`, in units of 1 / 256, grows from one side of the picture to the other.
        const int way = ((2 * x - side) * dx + (2 * y - side) * dy) / (side * 48);
        const int share = std::clamp(128 + way, 0, 256);
        for (size_t c = 0; c < 3; ++c) {
          pixel(x, y)[c] = static_cast<uint8_t>((from[c] * (256 - share) + to[c] * share) >> 8);
        }
      }
    }
  }

  void fill(int shape, const Color& ink) {
    const int cosine_over_radius = cosine(place_.angle) * 256 / place_.radius;
    const int sine_over_radius = sine(place_.angle) * 256 / place_.radius;
    const auto covered = [&](int x, int y) {
      int count = 0;
      for (int i = 0; i < samples * samples; ++i) {
        const int dx = x * unit + i % samples * 2 + 1 - place_.x;
        const int dy = y * unit + i / samples * 2 + 1 - place_.y;
        const int u = (dx * cosine_over_radius + dy * sine_over_radius) >> 8;
        const int v = (dy * cosine_over_radius - dx * sine_over_radius) >> 8;
        count += inside(shape, u, v);
      }
      return count;
    };
    const auto range = [&](int center) {
      return std::pair(std::max(0, (center - place_.radius) / unit),
                       std::min(side - 1, (center + place_.radius) / unit));
    };
    const auto [left, right] = range(place_.x);
    const auto [top, bottom] = range(place_.y);
    for (int y = top; y <= bottom; ++y) {
      for (int x = left; x <= right; ++x) {
        const int count = covered(x, y);
        for (size_t c = 0; c < 3; ++c) {
          uint8_t& value = pixel(x, y)[c];
          value = static_cast<uint8_t>((value * (16 - count) + ink[c] * count) / 16);
        }
      }
    }
  }

  void noise(int amplitude) {
    for (int64_t i = 0; i < drawn_shape.elements(); i += 4) {
      uint32_t bytes = stream_.next_u32();
      for (int64_t j = i; j < i + 4; ++j, bytes >>= 8) {
        const int value = out_[j] + (static_cast<int>(bytes & 255) - 128) * amplitude / 128;
        out_[j] = static_cast<uint8_t>(std::clamp(value, 0, 255));
      }
    }
  }

  RandomStream stream_;
  int shape_;
  uint8_t* out_;
  Place place_{};
};

}  // namespace

std::shared_ptr<const ImageSet> draw_images(std::string_view part, int64_t count) {
  if (count < 1) {
    fail_input("number of drawn images of part {} is {}, expected at least 1", part, count);
  }
  constexpr uint64_t seed = 0x7465737365726121;  // fixed: every run draws the same pictures
  constexpr auto classes = static_cast<int64_t>(drawn_classes.size());
  std::vector<uint8_t> pixels(static_cast<size_t>(count * drawn_shape.elements()));
  std::vector<int32_t> labels(static_cast<size_t>(count));
  const std::string purpose = "drawn images, " + std::string(part);
#pragma omp parallel for schedule(static) num_threads(thread_count())
  for (int64_t i = 0; i < count; ++i) {
    const auto label = static_cast<int>(i % classes);
    labels[static_cast<size_t>(i)] = label;
    Drawing(RandomStream(seed, purpose, static_cast<uint64_t>(i)), label,
            pixels.data() + i * drawn_shape.elements())
        .draw();
  }
  return std::make_shared<StoredImages>(
      drawn_shape, std::move(pixels), std::move(labels),
      [part = std::string(part)](int64_t index) {
        return fmt::format("drawn image {} of part {}", index, part);
      });
}

}  // namespace tessera::data
