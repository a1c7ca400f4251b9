#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "apps/train_gpt_options.h"
#include "core/text/input_file.h"
#include "core/text/json_read.h"
#include "data/ratings/histories.h"
#include "models/gpt/gpt.h"
#include "models/gpt/gpt_metadata.h"
#include "models/gpt/gpt_sizes.h"
#include "models/gpt/gpt_weights.h"
#include "models/image/image_classifier.h"
#include "models/image/image_model.h"
#include "models/recommender/recommender_file.h"
#include "nn/safetensors.h"
#include "nn/weights_file.h"
#include "tests/hostile/readers.h"
#include "tests/support/checkpoints.h"
#include "tests/support/temporary_folder.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/checkpoint/export_weights.h"
#include "train/checkpoint/import_checkpoint.h"
#include "train/checkpoint/shard_file.h"
#include "train/tuned_file.h"

namespace tessera::hostile {
namespace {

// Returns a file with tensors of every dtype, an empty tensor and a scalar.
FileContents safetensors_files() {
  const test::TemporaryFolder folder;
  const auto f32 = Tensor::full({3, 5}, 1.5f);
  nn::write_safetensors(folder.path("a"), {{"wide", f32},
                                           {"again", f32},
                                           {"empty", Tensor::zeros({0, 4})},
                                           {"tokens", Tensor::zeros({7}, DType::i32)},
                                           {"places", Tensor::zeros({5}, DType::i64)},
                                           {"bytes", Tensor::zeros({9}, DType::u8)},
                                           {"brain", Tensor::zeros({2, 2}, DType::bf16)},
                                           {"number", Tensor::zeros({}, DType::f16)}});
  return {{"file.safetensors", folder.read("a"), Form::safetensors}};
}

template <class T>
void read_as(const nn::SafetensorsReader& file, const nn::SafetensorsEntry& entry) {
  std::vector<T> values(static_cast<size_t>(entry.elements()));
  file.read(entry, 0, std::span(values));
}

void read_safetensors(const std::string& folder) {
  const nn::SafetensorsReader file(folder + "/file.safetensors");
  for (const nn::SafetensorsEntry& entry : file.entries()) {
    if (entry.dtype == "I32") read_as<int32_t>(file, entry);
    if (entry.dtype == "I64") read_as<int64_t>(file, entry);
    if (entry.dtype == "U8") read_as<uint8_t>(file, entry);
    if (entry.dtype == "F32" || entry.dtype == "BF16" || entry.dtype == "F16") {
      std::vector<float> values(static_cast<size_t>(entry.elements()));
      file.read_as_f32(entry, 0, values);
    }
  }
}

constexpr models::GptConfig tiny{.layers = 1, .heads = 2, .width = 8, .context = 8, .vocab = 16};

FileContents gpt_files() {
  const test::TemporaryFolder folder;
  models::Gpt model(tiny);
  nn::materialize(model, Device{}, 1);
  models::GptWriter writer(folder.path("model.safetensors"), model);
  for (const nn::NamedParameter& named : model.named_parameters()) {
    writer.write(named, named.parameter.tensor().values<float>());
  }
  writer.commit();
  return {{"config.json", folder.read("config.json"), Form::text},
          {"model.safetensors", folder.read("model.safetensors"), Form::safetensors}};
}

// Reads a GPT as the program `generate` does.
void read_gpt(const std::string& folder) {
  const std::string path = models::gpt_weights_path(folder);
  models::Gpt model(models::read_gpt_config_of(path));
  models::GptWeights(path, model).load();
}

// Reads a GPT as train_gpt --init does, with the sizes from the file.
void init_gpt(const std::string& folder) {
  const char* const arguments[] = {"train_gpt", "--data", "text.txt", "--init", folder.c_str()};
  const apps::TrainOptions options = apps::parse_command_line(5, arguments).options;
  models::Gpt model(options.model);
  models::GptWeights(options.init, model).load();
}

FileContents image_model_files() {
  const test::TemporaryFolder folder;
  const models::ImageModel description{.name = "resnet20",
                                       .sizes = {.side = 8, .channels = 3, .classes = 2},
                                       .norm = {.mean = {0.1f, 0.2f, 0.3f}, .std = {1, 2, 3}},
                                       .class_names = {"cat", "dog \"x\""}};
  const auto model = models::image_classifier(description.name, description.sizes);
  nn::materialize(*model, Device{}, 1);
  nn::WeightsWriter writer(folder.path("a"), *model, models::image_metadata(description));
  for (const nn::NamedParameter& named : model->named_parameters()) {
    writer.write(named, named.parameter.tensor().values<float>());
  }
  writer.commit(*model, 1);
  return {{"model.safetensors", folder.read("a"), Form::safetensors}};
}

// Reads an image model as the program `predict` does.
void read_image_model(const std::string& folder) {
  const std::string path = folder + "/model.safetensors";
  const models::ImageModel description = models::read_image_model(path);
  const auto model = models::image_classifier(description.name, description.sizes);
  nn::load_weights(path, *model);
}

FileContents recommender_files(const std::string& name) {
  const test::TemporaryFolder folder;
  const models::RecommenderFile file{
      .config =
          {.name = name, .users = 4, .items = 6, .factors = 3, .hidden = {4, 2}, .mean = 3.5f},
      .objective = name == "neumf" ? "bpr" : "rating",
      .lowest = 0.5f,
      .highest = 5,
      .user_ids = {"196", "u 2", "\xc3\xa9", "x"},
      .item_ids = {"1", "2", "30", "4", "tt5", "6"},
      .history = {0, 2, 5, 1, 3, 4},
      .history_begins = {0, 3, 3, 4, 6}};
  const auto model = models::recommender(file.config);
  nn::materialize(*model, Device{}, 1);
  nn::WeightsWriter writer(folder.path("a"), *model, models::recommender_metadata(file),
                           models::recommender_tensors(file));
  for (const nn::NamedParameter& named : model->named_parameters()) {
    writer.write(named, named.parameter.tensor().values<float>());
  }
  writer.commit(*model, 0);
  return {{"model.safetensors", folder.read("a"), Form::safetensors}};
}

// Reads a recommender as the program `recommend` does.
void read_recommender(const std::string& folder) {
  const std::string path = folder + "/model.safetensors";
  models::RecommenderFile file = models::read_recommender_file(path);
  const data::Histories histories(std::move(file.history), std::move(file.history_begins),
                                  file.config.items, path);
  const auto model = models::recommender(file.config);
  nn::WeightsFile(path, *model, models::recommender_tensor_names()).load(*model);
  for (int32_t user = 0; user < histories.users(); ++user) {
    for (int64_t place = 0; place < histories.others(user); ++place) {
      if (!histories.has(user, histories.other(user, place))) continue;
      throw std::logic_error("an item that a user has not is one that the user has");
    }
  }
  if (std::ssize(file.user_ids) != histories.users() ||
      std::ssize(file.item_ids) != histories.items()) {
    throw std::logic_error("a user or an item has no id");
  }
}

const train::TunedFor here{"a GPU", 130100};

FileContents tuned_files() {
  const cuda::ProductShape shape{.m = 64,
                                 .n = 96,
                                 .k = 32,
                                 .a = {.stride = 32},
                                 .b = {.stride = 96},
                                 .c = {.stride = 96},
                                 .dtype = DType::bf16,
                                 .c_dtype = DType::bf16,
                                 .bias_alignment = 256};
  std::vector<cuda::MeasuredProduct> products(2, {.fastest = {shape, {1, 2, 3, ~uint64_t{0}}},
                                                  .fastest_us = 1.5,
                                                  .first_us = 2.5,
                                                  .proposals = 3});
  products[1].fastest.shape.batch = 4;
  products[1].fastest.shape.a.batch_stride = 2048;
  return {{"tuned.json", train::tuned_text(here, products), Form::text}};
}

// Reads a table of `tune`. use_tuned_file() would refuse paths that are not files, but needs a GPU.
// So this function repeats the check.
void read_tuned(const std::string& folder) {
  const std::string path = folder + "/tuned.json";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) fail_input("{}: is no file", path);
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  train::parse_tuned(path, text.str(), here);
}

// Returns a checkpoint of two ranks, with two tensors and a count.
FileContents checkpoint_files() {
  const test::TemporaryFolder folder;
  const std::vector<optim::StateTensor> tensors{{"w", "value", DType::f32, {30, 20}},
                                                {"w", "exp_avg", DType::f32, {30, 20}},
                                                {"w", "updates", DType::i64, {}}};
  const auto piece = [&](size_t tensor, int64_t begin, int64_t end) {
    const Tensor values = Tensor::full({end - begin}, 0.5f + static_cast<float>(begin));
    return optim::StatePiece{.of = tensors[tensor], .begin = begin, .end = end, .values = values};
  };
  optim::StatePiece count{.of = tensors[2], .begin = 0, .end = 1, .values = {}};
  count.values = Tensor::from({1}, std::vector<int64_t>{7});
  train::Manifest manifest{.version = "0",
                           .step = 7,
                           .skipped = 1,
                           .weights = {{"format", "pt"}},
                           .imported = "w.safetensors",
                           .tensors = tensors};
  const auto add = [&](const std::string& name, const std::vector<optim::StatePiece>& pieces) {
    train::WrittenShard shard = train::write_shard(folder.path(""), name, pieces, tensors);
    for (train::CheckpointRange& range : shard.ranges) {
      range.file = std::ssize(manifest.files);
      manifest.digest += range.digest;
      manifest.ranges.push_back(range);
    }
    manifest.files.push_back(shard.file);
  };
  add("a.safetensors", {piece(0, 0, 512), piece(1, 0, 512), count});
  add("b.safetensors", {piece(0, 512, 600), piece(1, 512, 600)});
  std::ranges::sort(manifest.ranges, {}, [](const train::CheckpointRange& range) {
    return std::pair(range.tensor, range.begin);
  });
  return {{train::manifest_name, train::manifest_text(manifest), Form::text},
          {"a.safetensors", folder.read("a.safetensors"), Form::safetensors},
          {"b.safetensors", folder.read("b.safetensors"), Form::safetensors}};
}

// Reads and verifies everything in a checkpoint.
void read_checkpoint(const std::string& folder) {
  const train::CheckpointReader checkpoint(folder);
  checkpoint.verify();
  for (const optim::StateTensor& tensor : checkpoint.manifest().tensors) {
    if (tensor.dtype == DType::i64 && tensor.shape.elements() == 1) {
      checkpoint.count(tensor.path());
    } else if (is_float(tensor.dtype)) {
      std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
      checkpoint.read(tensor.path(), 0, values);
    }
  }
}

void read_unchanged_checkpoint(const std::string& folder) {
  read_checkpoint(folder);
  static const std::string manifest = checkpoint_files()[0].bytes;
  const train::CheckpointReader checkpoint(folder);
  if (train::manifest_text(checkpoint.manifest()) != manifest) {
    throw std::runtime_error("a checkpoint was read that nobody has written");
  }
}

// Gives a damaged manifest the checksum of its damaged text, so that readers accept the checksum.
void sign(const std::string& folder) {
  const std::string path = folder + "/" + train::manifest_name;
  std::string text = read_text_file(path, int64_t{1} << 28);
  text.resize(std::min(text.size(), text.rfind(",\n\"checksum\"")));
  std::ofstream(path, std::ios::binary) << train::with_checksum(text);
}

void read_lying_checkpoint(const std::string& folder) {
  sign(folder);
  read_checkpoint(folder);
}

// Returns a checkpoint of the tiny GPT, whose manifest has the model's sizes.
FileContents gpt_checkpoint_files() {
  const test::TemporaryFolder folder;
  models::Gpt model(tiny);
  nn::materialize(model, Device{}, 1);
  std::vector<test::Stated> state;
  for (const nn::NamedParameter& named : model.named_parameters()) {
    const Tensor& tensor = named.parameter.tensor();
    state.push_back({.of = {named.name, optim::value_kind, DType::f32, tensor.shape()},
                     .values = tensor.flat(0, tensor.elements())});
  }
  const std::string path = test::write_checkpoint(
      folder.path("run"), state, {.step = 1, .weights = models::gpt_metadata(tiny)});
  FileContents files;
  for (const std::string& name :
       {std::string(train::manifest_name), train::shard_name(0, 2), train::shard_name(1, 2)}) {
    const bool manifest = name == train::manifest_name;
    files.push_back({name, folder.read("run/" + train::checkpoint_name(1) + "/" + name),
                     manifest ? Form::text : Form::safetensors});
  }
  return files;
}

// Exports as `checkpoint export` does, from a manifest that may say anything.
void export_lying_checkpoint(const std::string& folder) {
  sign(folder);
  const test::TemporaryFolder out;
  train::export_weights(train::CheckpointReader(folder), out.path("model.safetensors"));
}

// Returns files with weights and with the state of AdamW as PyTorch stores it.
FileContents imported_files() {
  const test::TemporaryFolder folder;
  const auto many = Tensor::full({3, 90}, 1.5f);
  const auto few = Tensor::full({2}, 0.5f);
  nn::write_safetensors(
      folder.path("w"),
      {{"up.weight", many}, {"bn.weight", few}, {"bn.running_mean", few}, {"bn.running_var", few}});
  nn::write_safetensors(folder.path("m"), {{"up.weight.exp_avg", many},
                                           {"up.weight.exp_avg_sq", many},
                                           {"up.weight.step", Tensor::full({}, 3)},
                                           {"bn.weight.exp_avg", few},
                                           {"bn.weight.exp_avg_sq", few},
                                           {"bn.weight.step", Tensor::full({}, 3)}});
  return {{"model.safetensors", folder.read("w"), Form::safetensors},
          {"moments.safetensors", folder.read("m"), Form::safetensors}};
}

FileContents imported_gpt_files() {
  FileContents files = gpt_files();
  std::ranges::reverse(files);  // the weights come first
  return files;
}

// Imports as `checkpoint import` does. The imported checkpoint must be valid.
void import_files(const std::string& folder) {
  const test::TemporaryFolder out;
  train::ImportOptions options{.weights = folder + "/model.safetensors", .folder = out.path("run")};
  std::error_code error;
  const std::string moments = folder + "/moments.safetensors";
  const bool has_moments =
      !std::filesystem::exists(folder + "/config.json", error) || has_name(moments);
  if (has_moments) options.moments = moments;
  const std::string path = train::import_checkpoint(options).path;
  try {
    train::CheckpointReader(path).verify();
  } catch (const Error& problem) {
    throw std::logic_error(problem.what());
  }
}

}  // namespace

std::vector<Reader> weight_readers() {
  return {
      {"safetensors", {safetensors_files()}, read_safetensors},
      {"gpt", {gpt_files()}, read_gpt},
      {"gpt_init", {gpt_files()}, init_gpt},
      {"image_model", {image_model_files()}, read_image_model},
      {"recommender", {recommender_files("svd++"), recommender_files("neumf")}, read_recommender},
      {"checkpoint", {checkpoint_files()}, read_unchanged_checkpoint},
      {"lying_checkpoint", {checkpoint_files()}, read_lying_checkpoint},
      {"exported_checkpoint", {gpt_checkpoint_files()}, export_lying_checkpoint},
      {"imported_weights", {imported_files(), imported_gpt_files()}, import_files},
      {"tuned", {tuned_files()}, read_tuned}};
}

}  // namespace tessera::hostile
