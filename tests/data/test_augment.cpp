#include "data/images/augment.h"

#include <cmath>
#include <set>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "core/half.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;

namespace {

// Returns options whose normalization gives the pixel values themselves. The mean is 0, and the
// deviation of 1 / 255 undoes the division by 255.
data::ImageTransformOptions plain(const data::ImageShape& shape) {
  const auto channels = static_cast<size_t>(shape.channels);
  return {.shape = shape,
          .norm = {std::vector<float>(channels, 0), std::vector<float>(channels, 1.0f / 255)}};
}

std::vector<uint8_t> counting(const data::ImageShape& shape) {
  std::vector<uint8_t> pixels;
  for (int64_t i = 0; i < shape.elements(); ++i) {
    pixels.push_back(static_cast<uint8_t>(1 + i % 250));
  }
  return pixels;
}

std::vector<int> resized(const data::ImageShape& shape, const std::vector<uint8_t>& pixels,
                         const data::ImageBox& box, int64_t height, int64_t width) {
  std::vector<uint8_t> rows, out(static_cast<size_t>(height * width * shape.channels));
  data::resize_image({shape, pixels.data()}, box, height, width, rows, out.data());
  return {out.begin(), out.end()};
}

// Returns channel c of the pixel that is at (y, x) after the augmentation, 0 in the padding. The
// standard deviations of `options` must be those of plain().
float expected_pixel(const data::ImageTransformOptions& options, const std::vector<uint8_t>& pixels,
                     const data::Augmentation& drawn, int64_t y, int64_t x, int64_t c) {
  const data::ImageShape& shape = options.shape;
  const int64_t row = y + drawn.top;
  const int64_t column = (drawn.mirrored ? shape.width - 1 - x : x) + drawn.left;
  const bool there = row >= 0 && row < shape.height && column >= 0 && column < shape.width;
  if (!there) return 0;
  const auto at = static_cast<size_t>((row * shape.width + column) * shape.channels + c);
  return pixels[at] - 255 * options.norm.mean[static_cast<size_t>(c)];
}

}  // namespace

TEST_CASE("a training image is a crop of the padded image, mirrored or not") {
  const data::ImageShape shape{5, 7, 3};
  const auto pixels = counting(shape);
  const data::ImageView image{shape, pixels.data()};
  data::ImageTransformOptions options = plain(shape);
  // No pixel equals a mean, so 0 is in the padding only. A black pixel is below 0.
  options.norm.mean = {0.5f, 0.25f, 0.125f};
  const data::ImageTransform transform(options);
  data::ImageMemory memory;
  std::vector<float> out(static_cast<size_t>(shape.elements()));
  std::set<std::tuple<int64_t, int64_t, bool>> seen;
  for (int64_t sample = 0; sample < 2000; ++sample) {
    const data::Augmentation drawn = transform.draw(shape, 3, sample);
    seen.insert({drawn.top, drawn.left, drawn.mirrored});
    transform.train(image, 3, sample, memory, out.data());
    size_t i = 0;
    for (int64_t y = 0; y < 5; ++y) {
      for (int64_t x = 0; x < 7; ++x) {
        for (int64_t c = 0; c < 3; ++c, ++i) {
          const float expected = expected_pixel(options, pixels, drawn, y, x, c);
          if (!(std::abs(out[i] - expected) <= 1e-4f)) REQUIRE(out[i] == expected);
        }
      }
    }
  }
  REQUIRE(seen.size() == 9 * 9 * 2);  // every crop, mirrored or not
  data::ImageTransform(plain(shape)).evaluate(image, memory, out.data());
  for (size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == Catch::Approx(pixels[i]));
}

TEST_CASE("crops of images that are narrower than the padding stay in their memory") {
  for (const data::ImageShape& shape :
       {data::ImageShape{1, 1, 1}, data::ImageShape{2, 3, 3}, data::ImageShape{3, 3, 1}}) {
    const auto pixels = counting(shape);
    const data::ImageTransform transform(plain(shape));
    data::ImageMemory memory;
    constexpr int64_t guard = 64;
    for (int64_t sample = 0; sample < 500; ++sample) {
      std::vector<float> out(static_cast<size_t>(shape.elements() + 2 * guard), 7.0f);
      transform.train({shape, pixels.data()}, 3, sample, memory, out.data() + guard);
      REQUIRE(std::all_of(out.begin(), out.begin() + guard, [](float v) { return v == 7; }));
      REQUIRE(std::all_of(out.end() - guard, out.end(), [](float v) { return v == 7; }));
      const data::Augmentation drawn = transform.draw(shape, 3, sample);
      for (int64_t i = 0; i < shape.elements(); ++i) {
        const int64_t pixel = i / shape.channels;
        const float expected = expected_pixel(plain(shape), pixels, drawn, pixel / shape.width,
                                              pixel % shape.width, i % shape.channels);
        REQUIRE(std::abs(out[static_cast<size_t>(guard + i)] - expected) <= 1e-4f);
      }
    }
  }
}

TEST_CASE("an augmentation is a function of seed, epoch and sample") {
  const data::ImageShape shape{32, 32, 3};
  const auto places = [&](uint64_t seed, int64_t epoch, bool resizes) {
    data::ImageTransformOptions options = plain(shape);
    options.seed = seed;
    options.resizes = resizes;
    const data::ImageTransform transform(options);
    std::vector<double> result;
    for (int64_t sample = 99; sample >= 0; --sample) {
      const data::Augmentation drawn = transform.draw({40, 50, 3}, epoch, sample);
      result.insert(result.end(), {static_cast<double>(drawn.top), static_cast<double>(drawn.left),
                                   drawn.box.top, drawn.box.width, drawn.mirrored ? 1.0 : 0.0});
    }
    return result;
  };
  for (const bool resizes : {false, true}) {
    REQUIRE(places(1, 2, resizes) == places(1, 2, resizes));
    REQUIRE(places(1, 2, resizes) != places(1, 3, resizes));
    REQUIRE(places(1, 2, resizes) != places(2, 2, resizes));
  }
}

TEST_CASE("without flips no image is mirrored, and unaugmented training equals evaluation") {
  const data::ImageShape shape{4, 4, 1};
  data::ImageTransformOptions options = plain(shape);
  options.flips = false;
  const data::ImageTransform upright(options);
  for (int64_t i = 0; i < 200; ++i) REQUIRE_FALSE(upright.draw(shape, 0, i).mirrored);
  options.augments = false;
  const auto pixels = counting(shape);
  std::vector<float> out(16), evaluated(16);
  data::ImageMemory memory;
  const data::ImageTransform transform(options);
  for (int64_t i = 0; i < 50; ++i) {
    transform.train({shape, pixels.data()}, 0, i, memory, out.data());
    transform.evaluate({shape, pixels.data()}, memory, evaluated.data());
    REQUIRE(out == evaluated);
  }
}

TEST_CASE("values are normalised, in every dtype") {
  const data::ImageShape shape{8, 8, 3};
  const auto pixels = counting(shape);
  data::ImageTransformOptions options{
      .shape = shape, .norm = {{0.5f, 0.25f, 0.1f}, {0.25f, 0.5f, 0.2f}}, .seed = 5};
  data::ImageMemory memory;
  std::vector<float> wide(192);
  data::ImageTransform(options).train({shape, pixels.data()}, 0, 1, memory, wide.data());
  const auto check = [&]<class T>(T) {
    options.dtype = dtype_of<T>;
    std::vector<T> narrow(192);
    data::ImageTransform(options).train({shape, pixels.data()}, 0, 1, memory, narrow.data());
    for (size_t i = 0; i < wide.size(); ++i) REQUIRE(narrow[i] == rounded<T>(wide[i]));
  };
  check(BFloat16{});
  check(Float16{});
  data::ImageTransform(options = {.shape = shape, .norm = options.norm})
      .evaluate({shape, pixels.data()}, memory, wide.data());
  for (size_t i = 0; i < wide.size(); ++i) {
    const size_t c = i % 3;
    REQUIRE(wide[i] == (static_cast<float>(pixels[i]) / 255 - options.norm.mean[c]) /
                           options.norm.std[c]);
  }
  options.dtype = DType::i32;
  REQUIRE_THAT(test::message_of<Error>([&] { data::ImageTransform{options}; }),
               ContainsSubstring("dtype i32 is not supported"));
  REQUIRE_THAT(test::message_of<Error>([&] {
                 data::ImageTransform(plain(shape))
                     .evaluate({{8, 7, 3}, pixels.data()}, memory, wide.data());
               }),
               ContainsSubstring("an image of 8 x 7 x 3, expected 8 x 8 x 3"));
}

TEST_CASE("random crops have 8 to 100 % of the area and sides of 3:4 to 4:3") {
  data::ImageTransformOptions options = plain({16, 16, 3});
  options.resizes = true;
  const data::ImageTransform transform(options);
  double least = 1, most = 0;
  for (int64_t i = 0; i < 2000; ++i) {
    const data::ImageBox box = transform.draw({300, 400, 3}, 0, i).box;
    REQUIRE(box.top >= 0);
    REQUIRE(box.left >= 0);
    REQUIRE(box.top + box.height <= 300);
    REQUIRE(box.left + box.width <= 400);
    REQUIRE(box.width / box.height == Catch::Approx(1).margin(0.36));
    least = std::min(least, box.width * box.height / 120000);
    most = std::max(most, box.width * box.height / 120000);
  }
  REQUIRE(least == Catch::Approx(0.08).margin(0.01));
  REQUIRE(most > 0.9);
  // If no drawn box fits, the box is the middle of the image.
  for (int64_t i = 0; i < 50; ++i) {
    const data::ImageBox box = transform.draw({3, 400, 3}, 0, i).box;
    REQUIRE(box.height <= 3);
    REQUIRE(box.width <= 4);
    REQUIRE(box.left + box.width <= 400);
  }
}

TEST_CASE("resizing keeps flat colours, and weights neighbouring pixels") {
  const data::ImageShape shape{6, 5, 3};
  const auto pixels = counting(shape);
  const data::ImageBox whole{0, 0, 6, 5};
  // Resizing to the same size changes nothing. A box of whole pixels, if not resized, gives exactly
  // the pixels in the box.
  REQUIRE(resized(shape, pixels, whole, 6, 5) == std::vector<int>(pixels.begin(), pixels.end()));
  REQUIRE(resized(shape, pixels, {2, 1, 1, 2}, 1, 2) ==
          std::vector<int>(pixels.begin() + 33, pixels.begin() + 39));
  // An image of one colour must keep this colour at every scale.
  for (const int value : {0, 1, 128, 254, 255}) {
    const std::vector<uint8_t> flat(1000 * 3, static_cast<uint8_t>(value));
    for (const auto& [height, width] : {std::pair{1, 1}, {3, 7}, {50, 200}}) {
      for (const int out : resized({3, 1000, 1}, flat, {0.3, 1.7, 2.5, 990}, height, width)) {
        REQUIRE(out == value);
      }
    }
  }
  // At half the size, a pixel is the sum of four neighbours with weights 1/8, 3/8, 3/8, 1/8. At the
  // edge it is the sum of three neighbours, with weights 3/7, 3/7, 1/7.
  std::vector<uint8_t> dot(8, 0);
  dot[3] = 255;
  REQUIRE(resized({1, 8, 1}, dot, {0, 0, 1, 8}, 1, 4) == std::vector<int>{0, 96, 32, 0});
  REQUIRE(resized({8, 1, 1}, dot, {0, 0, 8, 1}, 4, 1) == std::vector<int>{0, 96, 32, 0});
  dot = {0, 0, 70, 0, 0, 0, 0, 0};
  REQUIRE(resized({1, 8, 1}, dot, {0, 0, 1, 8}, 1, 4) == std::vector<int>{10, 26, 0, 0});
  // At double size, a pixel is the sum of two neighbours with weights 3/4 and 1/4. At the edge it
  // is a copy of its only neighbour.
  REQUIRE(resized({1, 2, 1}, {100, 200}, {0, 0, 1, 2}, 1, 4) ==
          std::vector<int>{100, 125, 175, 200});
}

TEST_CASE("with a share of 1, evaluation uses the whole middle of an image") {
  data::ImageTransformOptions options = plain({4, 4, 1});
  options.resizes = true;
  options.evaluated_share = 1;
  const data::ImageShape shape{4, 8, 1};
  const auto pixels = counting(shape);
  data::ImageMemory memory;
  std::vector<float> out(16);
  data::ImageTransform(options).evaluate({shape, pixels.data()}, memory, out.data());
  for (size_t i = 0; i < out.size(); ++i) {
    REQUIRE(out[i] == Catch::Approx(pixels[i / 4 * 8 + 2 + i % 4]));
  }
}

TEST_CASE("evaluation resizes the shorter side of an image, and crops the middle") {
  data::ImageTransformOptions options = plain({14, 14, 3});
  options.resizes = true;
  const data::ImageTransform transform(options);
  // For a result of 14 x 14, the shorter side is resized to 16. A 16 x 32 image needs no resizing,
  // so the result is its middle 14 x 14 pixels.
  const data::ImageShape shape{16, 32, 3};
  const auto pixels = counting(shape);
  data::ImageMemory memory;
  std::vector<float> out(14 * 14 * 3);
  transform.evaluate({shape, pixels.data()}, memory, out.data());
  for (int64_t y = 0; y < 14; ++y) {
    for (int64_t x = 0; x < 14 * 3; ++x) {
      const auto expected = pixels[static_cast<size_t>(((y + 1) * 32 + 9) * 3 + x)];
      REQUIRE(out[static_cast<size_t>(y * 14 * 3 + x)] == Catch::Approx(expected));
    }
  }
}

TEST_CASE("a resized image with another number of channels than the input is refused") {
  const auto pixels = counting({64, 64, 3});
  for (const auto& [given, wanted] : {std::pair<int64_t, int64_t>{3, 1}, {1, 3}}) {
    CAPTURE(given, wanted);
    data::ImageTransformOptions options = plain({32, 32, wanted});
    options.resizes = true;
    const data::ImageTransform transform(options);
    const data::ImageView image{{64, 64, given}, pixels.data()};
    std::vector<float> out(32 * 32 * 3);
    const std::string expected =
        fmt::format("images: an image of 32 x 32 x {}, expected 32 x 32 x {}", given, wanted);
    data::ImageMemory memory;
    REQUIRE_THAT(test::message_of<Error>([&] { transform.train(image, 0, 0, memory, out.data()); }),
                 ContainsSubstring(expected));
    REQUIRE(memory.resized.size() == static_cast<size_t>(32 * 32 * given));
    data::ImageMemory other;
    REQUIRE_THAT(test::message_of<Error>([&] { transform.evaluate(image, other, out.data()); }),
                 ContainsSubstring(expected));
    REQUIRE(other.resized.size() == static_cast<size_t>(32 * 32 * given));
  }
}
