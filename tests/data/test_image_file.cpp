#include "data/images/formats/image_file.h"

#include <array>
#include <filesystem>
#include <vector>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/image_files.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace std::string_literals;
using Catch::Matchers::ContainsSubstring;
using test::jpeg;
using test::png;
using test::TemporaryFolder;

namespace {

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::vector<int> decoded(const std::string& file) {
  std::vector<uint8_t> pixels;
  const data::ImageView image = data::decode_image("a file", bytes_of(file), pixels);
  REQUIRE(image.shape.channels == 3);
  return {image.pixels, image.pixels + image.shape.elements()};
}

std::string refusal(const std::string& file) {
  std::vector<uint8_t> pixels;
  return test::message_of<InputError>(
      [&] { data::decode_image("a file", bytes_of(file), pixels); });
}

// Returns an image whose values rise evenly. JPEG preserves it almost exactly if no value exceeds
// 255.
std::vector<uint8_t> ramp(int width, int height, int channels) {
  std::vector<uint8_t> pixels;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        pixels.push_back(static_cast<uint8_t>(40 + 3 * x + 5 * y + 30 * c));
      }
    }
  }
  return pixels;
}

// Changes the size that a JPEG file states after FF C0, the marker of its frame.
std::string with_jpeg_size(std::string file, uint16_t height, uint16_t width) {
  const size_t frame = file.find("\xff\xc0"s);
  file.replace(frame + 5, 4, test::word(uint32_t{height} << 16 | width));
  return file;
}

}  // namespace

TEST_CASE("PNG of every kind is read as RGB") {
  REQUIRE(decoded(png({.width = 2}, "\0\x01\x02\x03\xff\x80\x40"s)) ==
          std::vector<int>{1, 2, 3, 255, 128, 64});
  REQUIRE(decoded(png({.width = 2, .color = 0}, "\0\x07\xc8"s)) ==
          std::vector<int>{7, 7, 7, 200, 200, 200});
  REQUIRE(decoded(png({.width = 3, .depth = 1, .color = 0}, "\0\xa0"s)) ==
          std::vector<int>{255, 255, 255, 0, 0, 0, 255, 255, 255});
  // 16 bits are rounded to 8: 0x80fe * 255 / 65535 = 128.49.
  REQUIRE(decoded(png({.depth = 16}, "\0\xff\xff\x80\xfe\x01\x02"s)) ==
          std::vector<int>{255, 128, 1});
  const std::string palette = test::png_chunk("PLTE", "\x0a\x0b\x0c\x14\x15\x16"s);
  REQUIRE(decoded(png({.width = 2, .color = 3}, "\0\x01\x00"s, palette)) ==
          std::vector<int>{20, 21, 22, 10, 11, 12});
  REQUIRE(decoded(png({.width = 2, .color = 3}, "\0\x01\x00"s,
                      palette + test::png_chunk("tRNS", "\x00\x10"s))) ==
          std::vector<int>{20, 21, 22, 10, 11, 12});
  // Transparency does not change the colours.
  REQUIRE(decoded(png({.color = 6}, "\0\x09\x08\x07\x00"s)) == std::vector<int>{9, 8, 7});
  REQUIRE(decoded(png({.color = 4}, "\0\x09\x01"s)) == std::vector<int>{9, 9, 9});
  // An interlaced image stores pixel (0, 0), then (0, 1), then the second row.
  REQUIRE(decoded(png({.width = 2, .height = 2, .color = 0, .interlaced = 1},
                      "\0\x01\0\x02\0\x03\x04"s)) ==
          std::vector<int>{1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4});
  // Gamma and text chunks are ignored, even if they are damaged.
  REQUIRE(decoded(png({.color = 0}, "\0\x09"s,
                      test::png_chunk("gAMA", test::word(1000)) +
                          test::png_chunk("zTXt", "a\0\0damaged"s))) == std::vector<int>{9, 9, 9});
}

TEST_CASE("JPEG of every kind is read as RGB") {
  const auto near = [](const std::vector<int>& actual, const std::vector<uint8_t>& expected,
                       int most) {
    REQUIRE(actual.size() == expected.size());
    for (size_t i = 0; i < actual.size(); ++i) REQUIRE(std::abs(actual[i] - expected[i]) <= most);
  };
  const auto colors = ramp(9, 7, 3);
  near(decoded(jpeg(9, 7, colors)), colors, 12);
  std::vector<uint8_t> grey3;
  const auto grey = ramp(9, 7, 1);
  for (const uint8_t value : grey) grey3.insert(grey3.end(), 3, value);
  near(decoded(jpeg(9, 7, grey, {JCS_GRAYSCALE, 1})), grey3, 2);
  near(decoded(jpeg(9, 7, grey, {JCS_GRAYSCALE, 1, true})), grey3, 2);
  // libjpeg stores CMYK inverted, as Adobe does: 255 is no ink.
  const std::vector<uint8_t> inks(4 * 64, 200);
  near(decoded(jpeg(8, 8, inks, {JCS_CMYK, 4})), std::vector<uint8_t>(3 * 64, 157), 2);
}

TEST_CASE("every image file that is cut short is refused") {
  const std::string files[] = {png({.width = 4}, "\0abcdefghijkl"s), jpeg(9, 7, ramp(9, 7, 3)),
                               jpeg(9, 7, ramp(9, 7, 1), {JCS_GRAYSCALE, 1, true})};
  for (const std::string& file : files) {
    REQUIRE(refusal(file) == "nothing was thrown");
    for (size_t size = 0; size < file.size(); ++size) {
      CAPTURE(size, file.size());
      REQUIRE_THAT(refusal(file.substr(0, size)), ContainsSubstring("a file: "));
    }
  }
}

TEST_CASE("a PNG with any byte changed is refused") {
  const std::string file = png({.width = 4}, "\0abcdefghijkl"s);
  for (size_t i = 0; i < file.size(); ++i) {
    CAPTURE(i);
    std::string bad = file;
    bad[i] = static_cast<char>(bad[i] ^ 0x55);
    REQUIRE_THAT(refusal(bad), ContainsSubstring("a file: "));
  }
}

TEST_CASE("damaged JPEG is refused if pixels are lost, and read otherwise") {
  const std::string file = jpeg(32, 32, ramp(32, 32, 3));
  const size_t middle = file.size() - 100;
  std::string early_end = file;
  early_end.replace(middle, 2, "\xff\xd9");
  REQUIRE_THAT(refusal(early_end), ContainsSubstring("a file: JPEG: "));
  std::string bad_codes = file;
  for (size_t i = middle; i < middle + 64; i += 2) bad_codes.replace(i, 2, "\xff\0"s);
  REQUIRE_THAT(refusal(bad_codes), ContainsSubstring("JPEG: Corrupt JPEG data"));
  // Some cameras and programs write zeros before the end of the file. These zeros must do no harm.
  std::string more = file;
  more.insert(file.size() - 2, 20, '\0');
  REQUIRE(decoded(more) == decoded(file));
}

TEST_CASE("images that claim to be huge are refused before memory is taken for them") {
  REQUIRE_THAT(refusal(png({.width = 65536, .height = 1025}, "\0"s)),
               ContainsSubstring("a file: says that it has 65536 x 1025 pixels, expected 1 to "
                                 "67108864"));
  REQUIRE_THAT(refusal(with_jpeg_size(jpeg(8, 8, ramp(8, 8, 3)), 65500, 65500)),
               ContainsSubstring("says that it has 65500 x 65500 pixels"));
  REQUIRE_THAT(refusal(png({.width = 0}, "\0"s)), ContainsSubstring("a file: PNG: "));
  // `scans` is a JPEG file that repeats one scan 600 times. The repeats add nothing to the image.
  const std::string file = jpeg(8, 8, ramp(8, 8, 1), {JCS_GRAYSCALE, 1, true});
  const size_t scan = file.rfind("\xff\xda");
  std::string scans = file.substr(0, file.size() - 2);
  for (int i = 0; i < 600; ++i) scans += file.substr(scan, file.size() - 2 - scan);
  REQUIRE_THAT(refusal(scans + "\xff\xd9"), ContainsSubstring("JPEG: more than 500 scans"));
}

TEST_CASE("files in other formats, and paths that are not files, are refused") {
  REQUIRE_THAT(refusal("GIF89a rest"),
               ContainsSubstring("neither JPEG nor PNG: it begins with the bytes 47 49 46 38 39"));
  const TemporaryFolder folder;
  data::ImageMemory memory;
  const auto refuse = [&](const std::string& path) {
    return test::message_of<InputError>([&] { data::read_image_file(path, memory); });
  };
  REQUIRE_THAT(refuse(folder.path("none.png")),
               ContainsSubstring("none.png: cannot be opened: No such file"));
  REQUIRE_THAT(refuse(folder.path("")), ContainsSubstring("not a regular file"));
  REQUIRE_THAT(refuse(folder.file("empty.png", "")), ContainsSubstring("empty.png: is empty"));
  // A sparse file above the limit takes no disk space, and must not be read.
  const std::string large = folder.file("large.png", "x");
  std::filesystem::resize_file(large, static_cast<uintmax_t>(data::image_file_limit_bytes) + 1);
  REQUIRE_THAT(refuse(large), ContainsSubstring("has 268435457 bytes, expected at most 268435456"));
  // The format is recognised by the content, not by the name.
  const data::ImageView image =
      data::read_image_file(folder.file("a.jpg", test::png_of(3, 2, "abc")), memory);
  REQUIRE(image.shape == data::ImageShape{2, 3, 3});
  REQUIRE(image.pixels[5 * 3] == 'a');
}
