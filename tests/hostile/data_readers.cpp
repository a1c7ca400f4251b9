#include <cstring>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/images/formats/image_file.h"
#include "data/images/image_data.h"
#include "data/tokens/token_data.h"
#include "tests/hostile/readers.h"
#include "tests/support/image_files.h"
#include "train/report/run_history.h"

namespace tessera::hostile {
namespace {

using namespace std::string_literals;
using test::word;

constexpr int64_t context = 8;

std::string tokens(int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) bytes += {static_cast<char>(i * 7), '\0'};
  return bytes;
}

std::string llmc_header(int32_t count) {
  std::string bytes(1024, '\0');
  const int32_t fields[] = {20240520, 1, count};
  std::memcpy(bytes.data(), fields, sizeof(fields));
  return bytes;
}

// Opens a file of tokens as train_gpt does. Reads sequences of the training and validation data, at
// the first 64 positions and at the last position where a sequence can start.
void read_tokens(const std::string& folder, const std::string& name, int64_t vocab) {
  const data::TokenData data({.path = folder + "/" + name, .context = context, .vocab = vocab});
  for (const data::TokenRange& range : {data.training(), data.validation()}) {
    std::vector<int64_t> starts;
    for (int64_t i = 0; i < std::min<int64_t>(range.starts(context), 64); ++i) starts.push_back(i);
    starts.push_back(range.starts(context) - 1);
    data::read_sequences(range, starts, context);
  }
}

void read_all(const data::ImageSet& set, int64_t classes) {
  data::ImageMemory memory;
  for (int64_t i = 0; i < set.size(); ++i) {
    const data::ImageView image = set.read(i, memory);
    int64_t sum = 0;
    for (int64_t j = 0; j < image.shape.elements(); ++j) sum += image.pixels[j];
    if (sum < 0 || set.label(i) < 0 || set.label(i) >= classes || set.name(i).empty()) {
      throw std::logic_error("an image has a label that no class has, or no name");
    }
  }
}

void read_images(const std::string& folder) {
  const data::ImageData data = data::open_image_data({.path = folder});
  read_all(*data.train, data.classes());
  read_all(*data.validation, data.classes());
}

FileContents idx(Form form) {
  std::string pixels;
  for (int i = 0; i < 6 * 4 * 5; ++i) pixels += static_cast<char>(i * 3);
  const std::string end = form == Form::gzip ? "-ubyte.gz" : "-ubyte";
  const auto images = [&](uint32_t count) {
    return "\0\0\x08\x03"s + word(count) + word(4) + word(5) + pixels.substr(0, count * 20);
  };
  return {{"train-images-idx3" + end, images(6), form},
          {"train-labels-idx1" + end, "\0\0\x08\x01"s + word(6) + "\0\1\2\3\4\x09"s, form},
          {"t10k-images-idx3" + end, images(3), form},
          {"t10k-labels-idx1" + end, "\0\0\x08\x01"s + word(3) + "\1\2\3"s, form}};
}

std::string records(int count, int label_bytes) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    bytes.append(static_cast<size_t>(label_bytes), static_cast<char>(i));
    for (int j = 0; j < 3072; ++j) bytes += static_cast<char>(i + j % 251);
  }
  return bytes;
}

std::string names(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "class" + std::to_string(i) + "\n";
  return text;
}

// Returns PNG files: RGB, 16-bit grey, an interlaced palette, and RGB with transparency.
std::vector<std::string> png_files() {
  const std::string palette = test::png_chunk("PLTE", "\0\1\2\3\4\5\6\7\x08"s);
  return {test::png_of(3, 3, "\1\2\3"),
          test::png({.width = 2, .height = 2, .depth = 16, .color = 0}, "\0abcd\0efgh"s),
          test::png({.width = 2, .height = 2, .depth = 8, .color = 3, .interlaced = 1},
                    "\0\0\0\1\0\2\1"s, palette),
          test::png({.width = 1, .height = 2, .depth = 8, .color = 6}, "\0abcd\1efgh"s)};
}

std::vector<std::string> jpeg_files() {
  std::vector<uint8_t> pixels(17 * 9 * 4);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 5);
  return {test::jpeg(17, 9, pixels),
          test::jpeg(17, 9, pixels, {.space = JCS_GRAYSCALE, .channels = 1, .progressive = true}),
          test::jpeg(17, 9, pixels, {.space = JCS_GRAYSCALE, .channels = 1}),
          test::jpeg(17, 9, pixels, {.space = JCS_CMYK, .channels = 4})};
}

std::vector<FileContents> single(const std::string& name, Form form,
                                 const std::vector<std::string>& files) {
  std::vector<FileContents> variants;
  for (const std::string& bytes : files) variants.push_back({{name, bytes, form}});
  return variants;
}

FileContents folder_files() {
  const auto png = png_files();
  const auto jpeg = jpeg_files();
  return {{"a/0.png", png[0], Form::png},
          {"a/1.jpg", jpeg[0], Form::plain},
          {"a/b/2.png", png[1], Form::png},
          {"c/3.jpeg", jpeg[1], Form::plain},
          {"c/4.png", png[2], Form::png}};
}

Reader image_file_reader(const std::string& name, Form form,
                         const std::vector<std::string>& files) {
  return {name, single("image", form, files),
          [](const std::string& folder) {
            data::ImageMemory memory;
            data::read_image_file(folder + "/image", memory);
          },
          int64_t{1} << 30};
}

// Returns the log of a run. Reports and CSV tables are made from such logs.
std::string log_lines() {
  return R"({"type":"header","program":"train_gpt","stage":2,"ranks":1,"layout":{"groups":[]}})"
         "\n"
         R"({"type":"step","step":1,"loss":2.5,"grad_norm":1.5,"lr":0.1,"tokens_per_s":1000})"
         "\n"
         R"({"type":"norms","step":1,"norms":{"a.weight":1.25,"a.bias":null}})"
         "\n"
         R"({"type":"step","step":2,"loss":null,"lr":0.05,"skipped":true})"
         "\n"
         R"({"type":"eval","step":2,"val_loss":2.25,"best":true})"
         "\n"
         R"({"type":"resume","step":2,"checkpoint":"c","stage":3})"
         "\n"
         R"({"type":"summary","steps":2,"equal":true,"ranks":[{"rank":0,"memory":{}}]})"
         "\n";
}

void read_log(const std::string& folder) { (void)train::read_history(folder + "/run.jsonl"); }

}  // namespace

std::vector<Reader> data_readers() {
  const auto bin = [](const std::string& folder) { read_tokens(folder, "tokens.bin", 50257); };
  const auto small = [](const std::string& folder) { read_tokens(folder, "text.txt", 128); };
  std::string text;
  for (int i = 0; i < 400; ++i) text += static_cast<char>('a' + i % 23);
  std::vector<Reader> readers = {
      {"tokens_text", single("text.txt", Form::plain, {text}), small},
      {"tokens_bin",
       single("tokens.bin", Form::plain, {tokens(300), llmc_header(300) + tokens(300)}), bin},
      {"log", single("run.jsonl", Form::text, {log_lines()}), read_log},
      {"idx", {idx(Form::plain)}, read_images},
      {"idx_gzip", {idx(Form::gzip)}, read_images},
      {"cifar10",
       {{{"data_batch_1.bin", records(3, 1)},
         {"data_batch_2.bin", records(2, 1)},
         {"test_batch.bin", records(2, 1)},
         {"batches.meta.txt", names(10)}}},
       read_images},
      {"cifar100",
       {{{"train.bin", records(3, 2)},
         {"test.bin", records(2, 2)},
         {"fine_label_names.txt", names(100)}}},
       read_images},
      {"folder", {folder_files()}, read_images},
      image_file_reader("png", Form::png, png_files()),
      image_file_reader("jpeg", Form::plain, jpeg_files())};
  for (Reader& reader : readers) {
    if (reader.name == "folder") reader.most_bytes = int64_t{1} << 30;
  }
  return readers;
}

}  // namespace tessera::hostile
