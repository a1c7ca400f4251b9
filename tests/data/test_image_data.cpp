#include "data/images/image_data.h"

#include <sys/stat.h>

#include <filesystem>
#include <set>
#include <vector>

#include "core/error.h"
#include "data/images/formats/cifar.h"
#include "data/images/formats/idx.h"
#include "tests/support/catch.h"
#include "tests/support/image_files.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace std::string_literals;
using Catch::Matchers::ContainsSubstring;
using test::gzipped;
using test::TemporaryFolder;
using test::word;

namespace {

namespace fs = std::filesystem;

std::string refusal(const std::string& path, int64_t image_size = 0) {
  return test::message_of<InputError>(
      [&] { data::open_image_data({.path = path, .image_size = image_size}); });
}

std::vector<int> pixels_of(const data::ImageSet& set, int64_t index) {
  data::ImageMemory memory;
  const data::ImageView image = set.read(index, memory);
  return {image.pixels, image.pixels + image.shape.elements()};
}

// Returns a CIFAR record whose pixel j of plane c is (7 * c + j) % 251 + `shift`.
std::string record(const std::string& labels, int shift = 0) {
  std::string bytes = labels;
  for (int c = 0; c < 3; ++c) {
    for (int j = 0; j < 1024; ++j) bytes += static_cast<char>((7 * c + j) % 251 + shift);
  }
  return bytes;
}

std::string idx_images(uint32_t count, uint32_t height, uint32_t width, const std::string& values) {
  return "\0\0\x08\x03"s + word(count) + word(height) + word(width) + values;
}
std::string idx_labels(uint32_t count, const std::string& values) {
  return "\0\0\x08\x01"s + word(count) + values;
}
std::string counting(int count) {
  std::string values;
  for (int i = 0; i < count; ++i) values += static_cast<char>(i % 200);
  return values;
}

std::string idx_refusal(const std::string& images, const std::string& labels) {
  const TemporaryFolder folder;
  const std::string a = folder.file("images", images), b = folder.file("labels", labels);
  return test::message_of<InputError>([&] { data::open_idx(a, b); });
}

// Writes an image of 2 x 2 pixels with the red value `red`. `file` is its path within the folder,
// such as dog/b.png.
void add_image(const TemporaryFolder& folder, const std::string& file, char red) {
  fs::create_directories(fs::path(folder.path(file)).parent_path());
  folder.file(file, test::png_of(2, 2, {red, 0, 0}));
}

std::string shared_data(const std::string& name) {
  const auto root = fs::path(__FILE__).parent_path().parent_path().parent_path();
  return (root.parent_path() / "shared" / "data" / name).string();
}

}  // namespace

TEST_CASE("CIFAR-10: records of all files are read, and planes become pixels") {
  const TemporaryFolder folder;
  folder.file("data_batch_10.bin", record("\x02", 2));
  folder.file("data_batch_2.bin", record("\x09", 1) + record("\x01"));
  folder.file("test_batch.bin", record("\x03"));
  const data::ImageData data = data::open_image_data({.path = folder.path("")});
  REQUIRE(data.format == "cifar10");
  REQUIRE(data.description() ==
          "3 images of 32 x 32 x 3 in 10 classes to train on, 1 to validate");
  REQUIRE(data.train->label(0) == 9);
  REQUIRE(data.train->label(2) == 2);
  REQUIRE(data.train->name(1) == "data_batch_2.bin, record 1");
  REQUIRE(data.train->name(2) == "data_batch_10.bin, record 0");
  const auto pixels = pixels_of(*data.train, 1);
  REQUIRE(std::vector<int>(pixels.begin(), pixels.begin() + 6) ==
          std::vector<int>{0, 7, 14, 1, 8, 15});
  REQUIRE(pixels_of(*data.train, 2)[0] == 2);
  REQUIRE(data.class_names[3] == "3");
  REQUIRE(data.transform.flips);
  REQUIRE_FALSE(data.transform.resizes);
}

TEST_CASE("CIFAR-100 uses the fine labels, and reads class names from a file") {
  const TemporaryFolder folder;
  folder.file("train.bin", record("\x13\x63") + record("\x01\x05", 1));
  folder.file("test.bin", record("\x00\x01"s));
  std::string names;
  for (int i = 0; i < 100; ++i) names += "name" + std::to_string(i) + "\r\n";
  folder.file("fine_label_names.txt", names + "\n");
  const data::ImageData data = data::open_image_data({.path = folder.path("")});
  REQUIRE(data.format == "cifar100");
  REQUIRE(data.train->label(0) == 99);
  REQUIRE(data.class_names[99] == "name99");
  folder.file("fine_label_names.txt", "one\ntwo\n");
  REQUIRE_THAT(refusal(folder.path("")),
               ContainsSubstring("fine_label_names.txt: has 2 names of classes, expected 100"));
  for (const char* end : {"fine_label_names.txt", "nowhere"}) {  // a link to itself or to nothing
    fs::remove(folder.path("fine_label_names.txt"));
    fs::create_symlink(end, folder.path("fine_label_names.txt"));
    CHECK_THAT(refusal(folder.path("")),
               ContainsSubstring("fine_label_names.txt: cannot be opened"));
  }
}

TEST_CASE("invalid CIFAR files are refused") {
  const TemporaryFolder folder;
  folder.file("data_batch_1.bin", record("\x01") + record("\x0a"));
  REQUIRE_THAT(refusal(folder.path("")), ContainsSubstring("has no test_batch.bin"));
  folder.file("test_batch.bin", record("\x03") + "x");
  REQUIRE_THAT(refusal(folder.path("")),
               ContainsSubstring("data_batch_1.bin: record 1 has the label 10, expected"));
  folder.file("data_batch_1.bin", record("\x01"));
  REQUIRE_THAT(refusal(folder.path("")),
               ContainsSubstring("test_batch.bin: has 3074 bytes, expected whole records of 3073"));
  folder.file("test_batch.bin", "");
  REQUIRE_THAT(refusal(folder.path("")), ContainsSubstring("test_batch.bin: is empty"));
  folder.file("test_batch.bin", record("\x03"));
  folder.file("data_batch_1.bin", "\x01"s + std::string(3072, '\x07'));
  REQUIRE_THAT(refusal(folder.path("")), ContainsSubstring("channel 0 is 7 everywhere"));
  folder.file("data_batch_1.bin", record("\x03"));
  REQUIRE_THAT(refusal(folder.path(""), 64),
               ContainsSubstring("an image size of 64 is asked for, but the images of"));
  const TemporaryFolder other;
  other.file("test.bin", "");
  REQUIRE_THAT(refusal(other.path("")), ContainsSubstring("has test.bin alone"));
}

TEST_CASE("IDX: names with dots or dashes, compressed or not; a lone pair is split 9 to 1") {
  const std::string images = idx_images(20, 2, 3, counting(120));
  const std::string labels = idx_labels(20, "\0\1\2\3\4\5\6\7\x08\x09\0\1\2\3\4\5\6\7\x08\x09"s);
  const TemporaryFolder one;
  one.file("t10k-images-idx3-ubyte.gz", gzipped(images));
  one.file("t10k-labels.idx1-ubyte", labels);
  const data::ImageData data = data::open_image_data({.path = one.path("")});
  REQUIRE(data.format == "idx");
  REQUIRE(data.description() ==
          "18 images of 2 x 3 x 1 in 10 classes to train on, 2 to validate");
  REQUIRE(pixels_of(*data.train, 1) == std::vector<int>{6, 7, 8, 9, 10, 11});
  REQUIRE(pixels_of(*data.validation, 0) == std::vector<int>{108, 109, 110, 111, 112, 113});
  REQUIRE(data.validation->label(1) == 9);
  REQUIRE(data.validation->name(1) == "t10k-images-idx3-ubyte.gz, image 19");
  REQUIRE_FALSE(data.transform.flips);

  one.file("train-images.idx3-ubyte.gz", gzipped(idx_images(2, 2, 3, counting(12))));
  REQUIRE_THAT(refusal(one.path("")),
               ContainsSubstring("has train-images.idx3-ubyte.gz alone, expected "
                                 "train-images-idx3-ubyte and train-labels-idx1-ubyte"));
  one.file("train-labels-idx1-ubyte.gz", gzipped(idx_labels(2, "\1\2")));
  const data::ImageData both = data::open_image_data({.path = one.path("")});
  REQUIRE(both.train->size() == 2);
  REQUIRE(both.validation->size() == 20);
  one.file("train-images.idx3-ubyte.gz", gzipped(idx_images(2, 3, 2, counting(12))));
  REQUIRE_THAT(refusal(one.path("")), ContainsSubstring("train are 3 x 2, those of t10k 2 x 3"));
}

TEST_CASE("invalid IDX files are refused") {
  const std::string images = idx_images(2, 2, 2, counting(8));
  const std::string labels = idx_labels(2, "\1\2");
  REQUIRE(idx_refusal(images, labels) == "nothing was thrown");
  REQUIRE_THAT(idx_refusal(labels, labels),
               ContainsSubstring("images: begins with 00000801, expected 00000803"));
  REQUIRE_THAT(idx_refusal(images, images), ContainsSubstring("expected 00000801"));
  REQUIRE_THAT(idx_refusal(images, idx_labels(3, "\1\2\3")),
               ContainsSubstring("labels: has 3 labels for the 2 images of"));
  REQUIRE_THAT(idx_refusal(images, idx_labels(2, "\1\x0a")),
               ContainsSubstring("labels: label 1 is 10, expected one below 10"));
  REQUIRE_THAT(idx_refusal(images + "x", labels),
               ContainsSubstring("images: has more than the 8 bytes"));
  REQUIRE_THAT(idx_refusal(gzipped(images + std::string(100000, 'x')), labels),
               ContainsSubstring("images: has more than the 8 bytes"));
  REQUIRE_THAT(idx_refusal(gzipped(images.substr(0, 20)), labels),
               ContainsSubstring("images: ends after 4 bytes, but its header says 8"));
  REQUIRE_THAT(idx_refusal(idx_images(0, 2, 2, ""), idx_labels(0, "")),
               ContainsSubstring("labels: its header says 0 bytes, expected at least 1"));
  REQUIRE_THAT(idx_refusal(idx_images(2, 0, 2, ""), labels), ContainsSubstring("0 x 2, expected"));
  // The sizes in a header are checked before memory is allocated for them.
  REQUIRE_THAT(idx_refusal(idx_images(0xffffffff, 65535, 65535, "x"), idx_labels(0xffffffff, "")),
               ContainsSubstring("images: its header says 2^63 bytes or more"));
  REQUIRE_THAT(idx_refusal(idx_images(0x7fffffff, 65535, 16, "x"), idx_labels(0x7fffffff, "")),
               ContainsSubstring("labels: its header says 2147483647 bytes, more than a file"));
  REQUIRE_THAT(idx_refusal(gzipped(idx_images(2, 65535, 65535, "x")), labels),
               ContainsSubstring("images: its header says 8589672450 bytes, more than a file"));
}

TEST_CASE("every IDX file that is cut short is refused, compressed or not") {
  const std::string images = idx_images(2, 2, 2, counting(8));
  for (const std::string& file : {images, gzipped(images)}) {
    for (size_t size = 0; size < file.size(); ++size) {
      CAPTURE(size, file.size());
      REQUIRE_THAT(idx_refusal(file.substr(0, size), idx_labels(2, "\1\2")),
                   ContainsSubstring("images: "));
    }
  }
}

TEST_CASE("a folder of class folders, with its own validation part") {
  const TemporaryFolder folder;
  add_image(folder, "train/dog/b.png", 1);
  add_image(folder, "train/dog/a.jpeg", 2);
  add_image(folder, "train/cat/deeper/c.png", 3);
  add_image(folder, "train/.cache/x.png", 9);
  add_image(folder, "train/cat/.hidden.png", 9);
  add_image(folder, "val/cat/x.png", 4);
  add_image(folder, "val/dog/y.png", 5);
  const data::ImageData data = data::open_image_data({.path = folder.path("")});
  REQUIRE(data.format == "folder");
  REQUIRE(data.class_names == std::vector<std::string>{"cat", "dog"});
  REQUIRE(data.description() ==
          "3 images of 224 x 224 x 3 in 2 classes to train on, 2 to validate");
  std::vector<int> reds, labels;
  for (const auto& set : {data.train, data.validation}) {
    for (int64_t i = 0; i < set->size(); ++i) {
      reds.push_back(pixels_of(*set, i)[0]);
      labels.push_back(set->label(i));
    }
  }
  REQUIRE(reds == std::vector<int>{3, 2, 1, 4, 5});
  REQUIRE(labels == std::vector<int>{0, 1, 1, 0, 1});
  REQUIRE(data.train->name(0) == folder.path("train/cat/deeper/c.png"));
  REQUIRE(data.transform.resizes);
  REQUIRE(data::open_image_data({.path = folder.path(""), .image_size = 64}).transform.shape ==
          data::ImageShape{64, 64, 3});
  REQUIRE(data::open_image_data({.path = folder.path("")}).transform.shape ==
          data::ImageShape{224, 224, 3});
  REQUIRE(
      data::open_image_data({.path = folder.path(""), .image_size = 16384}).transform.shape.width ==
      16384);
  for (const int64_t size : {-1, 16385}) {
    REQUIRE_THAT(refusal(folder.path(""), size),
                 ContainsSubstring(fmt::format("image size is {}, expected 0 to 16384", size)));
  }
  add_image(folder, "val/eel/z.png", 6);
  REQUIRE_THAT(refusal(folder.path("")),
               ContainsSubstring("val: has the class folders cat, dog, eel, expected those of"));
}

TEST_CASE("the parts of a folder have one of several names, in upper or lower case") {
  for (const char* training : {"Train", "training"}) {
    for (const char* validation : {"Test", "testing", "VAL", "valid", "Validation"}) {
      const TemporaryFolder folder;
      for (const char* name : {"cat", "dog"}) {
        add_image(folder, fmt::format("{}/{}/1.png", training, name), 1);
        add_image(folder, fmt::format("{}/{}/2.png", validation, name), 2);
      }
      const data::ImageData data = data::open_image_data({.path = folder.path("")});
      CHECK(data.class_names == std::vector<std::string>{"cat", "dog"});
      CHECK(data.train->name(0) == folder.path(fmt::format("{}/cat/1.png", training)));
      CHECK(data.validation->name(1) == folder.path(fmt::format("{}/dog/2.png", validation)));
    }
  }
  const TemporaryFolder folder;
  for (const char* file : {"train/a/1.png", "train/b/1.png", "val/a/1.png", "val/b/1.png"}) {
    add_image(folder, file, 1);
  }
  add_image(folder, "Testing/a/1.png", 1);
  CHECK(data::open_image_data({.path = folder.path("")}).validation->size() == 2);
  add_image(folder, "Valid/a/1.png", 1);
  CHECK_THAT(refusal(folder.path("")),
             ContainsSubstring("has the folders Valid and val, expected only one of them"));
  std::filesystem::remove_all(folder.path("Valid"));
  std::filesystem::create_directory_symlink(folder.path("val"), folder.path("Valid"));
  CHECK(data::open_image_data({.path = folder.path("")}).validation->size() == 2);
  add_image(folder, "Train/a/1.png", 1);
  CHECK_THAT(refusal(folder.path("")), ContainsSubstring("has the folders Train and train, "));
}

TEST_CASE("parts of a data set with unknown names are not taken for classes") {
  const TemporaryFolder folder;
  for (const char* file : {"one/a/1.png", "one/b/1.png", "two/a/1.png", "two/b/1.png"}) {
    add_image(folder, file, 1);
  }
  add_image(folder, "two/c/1.png", 1);
  folder.file("one/.hidden", "");
  CHECK_THAT(
      refusal(folder.path("")),
      ContainsSubstring("/one and ") && ContainsSubstring("no images, but the same folders a, b"));
  // Now only the folder b is in both `one` and `two`. So `one` and `two` are accepted as classes
  // that keep their images in subfolders.
  fs::remove_all(folder.path("two/a"));
  CHECK(data::open_image_data({.path = folder.path("")}).class_names[0] == "one");
}

TEST_CASE("beside train, other parts are refused; a class may be called Training") {
  const TemporaryFolder parts;
  for (const char* file : {"train/a/1.png", "train/b/1.png", "valdaton/a/1", "valdaton/b/1"}) {
    add_image(parts, file, 1);
  }
  CHECK_THAT(refusal(parts.path("")), ContainsSubstring("no images, but the same folders a, b"));
  const TemporaryFolder classes;
  for (const char* name : {"Training", "bus"}) {
    for (int i = 0; i < 2; ++i) add_image(classes, fmt::format("{}/images/{}.png", name, i), 1);
  }
  CHECK(data::open_image_data({.path = classes.path("")}).class_names[0] == "Training");
}

TEST_CASE("without a validation part, the last tenth of each class folder is held out") {
  const TemporaryFolder folder;
  for (int i = 0; i < 20; ++i) {
    add_image(folder, fmt::format("a/{:02}.png", i), static_cast<char>(i));
    if (i < 3) add_image(folder, fmt::format("train/{:02}.png", i), static_cast<char>(100 + i));
  }
  const data::ImageData data = data::open_image_data({.path = folder.path("")});
  REQUIRE(data.class_names == std::vector<std::string>{"a", "train"});
  REQUIRE(data.train->size() == 20);
  REQUIRE(data.validation->size() == 3);
  REQUIRE(pixels_of(*data.validation, 0)[0] == 18);
  REQUIRE(pixels_of(*data.validation, 2)[0] == 102);
  REQUIRE(pixels_of(*data.train, 19)[0] == 101);
}

TEST_CASE("invalid folders of images are refused") {
  REQUIRE_THAT(refusal("/no/such"), ContainsSubstring("/no/such: no such folder"));
  const TemporaryFolder folder;
  const std::string path = folder.path("");
  REQUIRE_THAT(refusal(folder.file("file", "")), ContainsSubstring("is a file, expected"));
  REQUIRE_THAT(refusal(path), ContainsSubstring("no images in a known format. Looked for"));
  add_image(folder, "a/1.png", 1);
  add_image(folder, "a/2.png", 1);
  REQUIRE_THAT(refusal(path), ContainsSubstring("two or more folders of JPEG or PNG files, one "
                                                  "per class"));
  fs::create_directories(folder.path("b"));
  REQUIRE_THAT(refusal(path), ContainsSubstring("/b: has no images"));
  add_image(folder, "b/1.png", 1);
  REQUIRE_THAT(refusal(path), ContainsSubstring("/b/1.png: is the only image of its class"));
  folder.file("b/2.png", "hello, no image");
  data::ImageMemory memory;
  const data::ImageData data = data::open_image_data({.path = path});
  REQUIRE_THAT(test::message_of<InputError>([&] { data.validation->read(1, memory); }),
               ContainsSubstring("image 2 of 2: " + folder.path("b/2.png") + ": is neither JPEG"));
  fs::create_symlink("nowhere", folder.path("b/3.png"));
  REQUIRE_THAT(refusal(path), ContainsSubstring("/b/3.png: is neither a file nor a folder"));
  fs::remove(folder.path("b/3.png"));
  REQUIRE(::mkfifo(folder.path("b/3.png").c_str(), 0600) == 0);
  REQUIRE_THAT(refusal(path), ContainsSubstring("/b/3.png: is neither a file nor a folder"));
}

TEST_CASE("without a path, images are drawn") {
  const data::ImageData data =
      data::open_image_data({.drawn_training = 100, .drawn_validation = 20});
  REQUIRE(data.format == "drawn");
  REQUIRE(data.description() ==
          "100 images of 32 x 32 x 3 in 10 classes to train on, 20 to validate");
  REQUIRE(data.class_names[5] == "star");
  REQUIRE_THAT(
      test::message_of<InputError>([] {
        data::open_image_data({.image_size = 64, .drawn_training = 10, .drawn_validation = 10});
      }),
      ContainsSubstring("the images of the drawn set are 32 x 32"));
}

TEST_CASE("mean and deviation are over all values of a channel") {
  const data::StoredImages set({1, 2, 3}, {0, 255, 10, 255, 255, 20, 0, 0, 30, 255, 0, 40}, {0, 0},
                               [](int64_t i) { return std::to_string(i); });
  const auto [mean, std] = data::measure_channels(set, 3);
  REQUIRE(mean == std::vector<float>{0.5f, 0.5f, 25.0f / 255});
  REQUIRE(std[0] == 0.5f);
  REQUIRE(std[2] == Catch::Approx(11.18034 / 255));
}

TEST_CASE("CIFAR-10's images, if they are there") {
  const std::string path = shared_data("cifar-10-batches-bin");
  if (!fs::exists(path)) TESSERA_SKIP("no " + path);
  const data::ImageData data = data::open_image_data({.path = path});
  REQUIRE(data.description() ==
          "10,000 images of 32 x 32 x 3 in 10 classes to train on, 2,000 to validate");
  REQUIRE(data.class_names[9] == "truck");
  // For all 50,000 training images the literature gives means 0.4914, 0.4822, 0.4465 and deviations
  // 0.247, 0.243, 0.262.
  REQUIRE(data.transform.norm.mean[0] == Catch::Approx(0.4914).margin(0.01));
  REQUIRE(data.transform.norm.std[2] == Catch::Approx(0.2616).margin(0.01));
}

TEST_CASE("MNIST's images, if they are there") {
  const std::string path = shared_data("mnist");
  if (!fs::exists(path)) TESSERA_SKIP("no " + path);
  const data::ImageData data = data::open_image_data({.path = path});
  REQUIRE(data.description() ==
          "9,000 images of 28 x 28 x 1 in 10 classes to train on, 1,000 to validate");
  REQUIRE(data.train->label(0) == 7);
  REQUIRE(data.transform.norm.mean[0] == Catch::Approx(0.1307).margin(0.01));
}
