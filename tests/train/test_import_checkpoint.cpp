#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/import_checkpoint.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "models/gpt/gpt_config_file.h"
#include "models/recommender/recommender_file.h"
#include "nn/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/checkpoints.h"
#include "tests/support/temporary_folder.h"
#include "train/checkpoint/compare_checkpoints.h"
#include "train/checkpoint/export_weights.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;
using nn::NamedTensor;
using train::CheckpointReader;
using train::ImportOptions;

Tensor half(const std::vector<float>& values) {
  const Tensor tensor = Tensor::empty({std::ssize(values)}, DType::f16, Device{});
  for (size_t i = 0; i < values.size(); ++i) tensor.data<Float16>()[i] = Float16(values[i]);
  return tensor;
}

Tensor numbers(const Shape& shape, float first) {
  const Tensor tensor = Tensor::empty(shape, DType::f32, Device{});
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.data<float>()[i] = first + static_cast<float>(i);
  }
  return tensor;
}

struct Files {
  TemporaryFolder folder;

  ImportOptions options(const std::vector<NamedTensor>& weights,
                        const std::vector<NamedTensor>& moments = {}) const {
    ImportOptions options{.weights = folder.path("w.safetensors"), .folder = folder.path("run")};
    write(options.weights, weights);
    if (moments.empty()) return options;
    options.moments = folder.path("m.safetensors");
    write(options.moments, moments);
    return options;
  }
  static void write(const std::string& path, std::vector<NamedTensor> tensors) {
    for (NamedTensor& named : tensors) named.tensor = named.tensor.to_host();
    nn::write_safetensors(path, tensors);
  }
  std::string refusal(const ImportOptions& options) const {
    std::string message = message_of<InputError>([&] { train::import_checkpoint(options); });
    CHECK(train::checkpoint_steps(options.folder).empty());
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path(""))) {
      CHECK(entry.path().extension() != ".partial");
    }
    return message;
  }
};

const std::vector<NamedTensor> weights{{"a.weight", numbers({3, 400}, 0)}, {"b", half({1, -2})}};

std::vector<NamedTensor> adam_state() {
  return {{"a.weight.exp_avg", numbers({3, 400}, 0.5f)},
          {"a.weight.exp_avg_sq", numbers({3, 400}, 7)},
          {"a.weight.step", Tensor::full({}, 12)},
          {"b.exp_avg", half({3, 4})},
          {"b.exp_avg_sq", numbers({2}, 1)},
          {"b.step", Tensor::from({1}, std::vector<int64_t>{12})}};
}

TEST_CASE("imported weights have the state of a fresh optimizer") {
  const Files files;
  const train::ImportedCheckpoint imported = train::import_checkpoint(files.options(weights));
  CHECK(imported.path == files.folder.path("run/step-000000000"));
  const CheckpointReader checkpoint(imported.path);
  checkpoint.verify();
  CHECK(checkpoint.manifest().imported == "w.safetensors");
  CHECK(checkpoint.manifest().run.empty());
  const CheckpointReader expected(
      write_checkpoint(files.folder.path("expected"),
                       {{{"a.weight", "value", DType::f32, {3, 400}}, numbers({1200}, 0)},
                        stated("a.weight", "exp_avg", {3, 400}, std::vector<float>(1200)),
                        stated("a.weight", "exp_avg_sq", {3, 400}, std::vector<float>(1200)),
                        stated("b", "value", {2}, {1, -2}),
                        stated("b", "exp_avg", {2}, {0, 0}),
                        stated("b", "exp_avg_sq", {2}, {0, 0}),
                        stated_count("a.weight", 0),
                        stated_count("b", 0)},
                       {.step = 0}));
  CHECK(train::compare_checkpoints(checkpoint, expected).equal());
  CHECK(checkpoint.manifest().digest == expected.manifest().digest);
}

TEST_CASE("the state of an optimizer is imported, into files of any size") {
  const Files files;
  ImportOptions options = files.options(weights, adam_state());
  options.shard_bytes = GENERATE(2048, 4096, 6000, int64_t{1} << 28);
  const train::ImportedCheckpoint imported = train::import_checkpoint(options);
  CHECK(imported.manifest.step == 12);
  const CheckpointReader checkpoint(imported.path);
  checkpoint.verify();
  for (const train::CheckpointFile& file : checkpoint.manifest().files) {
    CHECK(file.bytes - file.header_bytes <= options.shard_bytes);
  }
  const CheckpointReader expected(
      write_checkpoint(files.folder.path("expected"),
                       {{{"a.weight", "value", DType::f32, {3, 400}}, numbers({1200}, 0)},
                        {{"a.weight", "exp_avg", DType::f32, {3, 400}}, numbers({1200}, 0.5f)},
                        {{"a.weight", "exp_avg_sq", DType::f32, {3, 400}}, numbers({1200}, 7)},
                        stated("b", "value", {2}, {1, -2}),
                        stated("b", "exp_avg", {2}, {3, 4}),
                        stated("b", "exp_avg_sq", {2}, {1, 2}),
                        stated_count("a.weight", 12),
                        stated_count("b", 12)},
                       {.step = 12}));
  CHECK(train::compare_checkpoints(checkpoint, expected).equal());
}

TEST_CASE("running statistics are recognised by their names") {
  const Files files;
  std::vector<NamedTensor> with{
      {"bn.weight", numbers({2}, 1)},
      {"bn.running_mean", numbers({2}, 3)},
      {"bn.running_var", numbers({2}, 5)},
      {"bn.num_batches_tracked", Tensor::from({}, std::vector<int64_t>{9})}};
  const CheckpointReader checkpoint(train::import_checkpoint(files.options(with)).path);
  float value = 0;
  checkpoint.read("bn/running_var", 1, std::span(&value, 1));
  CHECK(value == 6);
  CHECK(checkpoint.manifest().weights.at("num_batches_tracked") == "9");
  const Files bad;
  with[2].tensor = numbers({2}, -1);
  CHECK(bad.refusal(bad.options(with)).find("\"bn.running_var\" has the value -1") !=
        std::string::npos);
  with[2].tensor = numbers({3}, 1);
  CHECK(bad.refusal(bad.options(with))
            .find("has a running_mean, but no running_var of the same shape") != std::string::npos);
}

TEST_CASE("a model that is itself a batch norm is imported and exported under the same names") {
  const Files files;
  const ImportOptions options =
      files.options({{"weight", numbers({2}, 1)},
                     {"running_mean", numbers({2}, 3)},
                     {"running_var", numbers({2}, 5)},
                     {"num_batches_tracked", Tensor::from({}, std::vector<int64_t>{9})}});
  const CheckpointReader checkpoint(train::import_checkpoint(options).path);
  const std::string path = files.folder.path("out.safetensors");
  train::export_weights(checkpoint, path);
  const nn::SafetensorsReader file(path);
  CHECK(file.entries().size() == 4);
  float value = 0;
  file.read<float>(file.entry("running_var"), 1, std::span(&value, 1));
  CHECK(value == 6);
  CHECK(file.entry("running_mean").dtype == "F32");
  CHECK(file.entry("num_batches_tracked").dtype == "I64");
}

TEST_CASE("a recommender's ids are recorded, which shapes do not show") {
  const Files files;
  const ImportOptions options{.weights = files.folder.path("w.safetensors"),
                              .folder = files.folder.path("run")};
  const models::RecommenderFile file{.config = {.name = "mf", .users = 2, .items = 3, .factors = 4},
                                     .objective = "rating",
                                     .user_ids = {"u", "v"},
                                     .item_ids = {"1", "2", "3"},
                                     .history = {0},
                                     .history_begins = {0, 1, 1}};
  std::vector<NamedTensor> tensors = models::recommender_tensors(file);
  for (const auto& named : models::recommender(file.config)->named_parameters()) {
    tensors.push_back({named.name, numbers(named.parameter.shape(), 0).to_host()});
  }
  nn::write_safetensors(options.weights, tensors, models::recommender_metadata(file));
  CHECK(train::import_checkpoint(options).manifest.run ==
        dist::Settings{{"model.name", "mf"},
                       {"ids", models::digest_of_ids(file.user_ids, file.item_ids)}});
}

constexpr models::GptConfig tiny{.layers = 2, .heads = 2, .width = 4, .context = 3, .vocab = 7};

std::vector<NamedTensor> gpt_weights(const std::string& prefix) {
  std::vector<NamedTensor> tensors;
  for (const nn::NamedParameter& named : models::Gpt(tiny).named_parameters()) {
    tensors.push_back({prefix + named.name, numbers(named.parameter.shape(), 0)});
  }
  return tensors;
}

TEST_CASE("a part of a GPT's weights is refused beside the config.json of a GPT") {
  const std::string prefix = GENERATE(as<std::string>(), "", "transformer.");
  const Files files;
  files.folder.file("config.json", models::gpt_config_text(tiny));
  for (const char* missing : {"wte.weight", "wpe.weight", "ln_f.weight", "h.1.ln_1.bias"}) {
    std::vector<NamedTensor> part = gpt_weights(prefix);
    REQUIRE(std::erase_if(
                part, [&](const NamedTensor& one) { return one.name == prefix + missing; }) == 1);
    CHECK_THAT(files.refusal(files.options(part)),
               ContainsSubstring(fmt::format("w.safetensors: it has no tensor \"{}\"", missing)));
  }
  // The names of layers are enough to recognise a part of a GPT.
  CHECK_THAT(files.refusal(files.options({{prefix + "h.1.ln_1.bias", numbers({4}, 0)}})),
             ContainsSubstring("it has no tensor \"wte.weight\""));
  const train::ImportedCheckpoint whole =
      train::import_checkpoint(files.options(gpt_weights(prefix)));
  CHECK(whole.manifest.weights.at("model_type") == "gpt2");
}

TEST_CASE("one of several files of a GPT is refused, and the error says how to save one file") {
  const Files files;
  files.folder.file("config.json", models::gpt_config_text(tiny));
  files.folder.file("model.safetensors.index.json", "{}");
  const std::vector<NamedTensor> whole = gpt_weights("transformer.");
  const std::vector<NamedTensor> parts[] = {{whole.begin(), whole.begin() + 6},
                                            {whole.begin() + 6, whole.end()}};
  ImportOptions options{.weights = "", .folder = files.folder.path("run")};
  for (int i = 0; i < 2; ++i) {
    options.weights = files.folder.path(fmt::format("model-0000{}-of-00002.safetensors", i + 1));
    Files::write(options.weights, parts[i]);
    CHECK_THAT(files.refusal(options),
               ContainsSubstring(fmt::format("model-0000{}-of-00002.safetensors: it has a part of "
                                             "weights that are divided among several files",
                                             i + 1)) &&
                   ContainsSubstring("safe_serialization=True"));
  }
  // The only file of an index is whole, and so is a file that only resembles a part.
  int64_t step = 0;
  for (const char* name : {"model-00001-of-00001.safetensors", "model-00001.safetensors",
                           "model-00001-of-00002.old.safetensors", "model-7"}) {
    options.weights = files.folder.path(name);
    options.step = step++;
    Files::write(options.weights, whole);
    CHECK(train::import_checkpoint(options).manifest.weights.at("model_type") == "gpt2");
  }
}

TEST_CASE("only beside the config.json of a GPT are a GPT's names those of a GPT") {
  const std::vector<NamedTensor> named_like{{"h.0.weight", numbers({2}, 0)},
                                            {"wte.weight", numbers({2, 2}, 0)}};
  for (const char* config : {"", R"({"model_type": "bloom"})", R"({"n_layer": 2})", "no JSON"}) {
    const Files files;
    if (*config != '\0') files.folder.file("config.json", config);
    const CheckpointReader checkpoint(train::import_checkpoint(files.options(named_like)).path);
    float value = 0;
    checkpoint.read("h.0.weight/value", 1, std::span(&value, 1));
    CHECK(value == 1);
  }
  const Files files;
  files.folder.file("config.json", models::gpt_config_text(tiny));
  CHECK(train::import_checkpoint(files.options(weights)).manifest.run.empty());
}

TEST_CASE("metadata of a GPT are refused for a file without the tensors of a GPT") {
  const Files files;
  const ImportOptions options{.weights = files.folder.path("w.safetensors"),
                              .folder = files.folder.path("run")};
  const std::vector<NamedTensor> tensors{{"wte.weight", numbers({2, 2}, 0).to_host()}};
  nn::write_safetensors(options.weights, tensors, {{"model_type", "gpt2"}});
  CHECK_THAT(files.refusal(options),
             ContainsSubstring("w.safetensors: its metadata describe a GPT (model_type is gpt2), "
                               "but it lacks at least one of wte.weight, wpe.weight and"));
  // Metadata of other models are kept for the export.
  nn::write_safetensors(options.weights, tensors, {{"model_type", "bloom"}});
  const CheckpointReader checkpoint(train::import_checkpoint(options).path);
  const std::string path = files.folder.path("out.safetensors");
  train::export_weights(checkpoint, path);
  CHECK(nn::SafetensorsReader(path).metadata().at("model_type") == "bloom");
  // The metadata do not matter for a GPT, because its sizes are those of config.json.
  const Files gpt;
  gpt.folder.file("config.json", models::gpt_config_text(tiny));
  std::vector<NamedTensor> whole = gpt_weights("");
  for (NamedTensor& named : whole) named.tensor = named.tensor.to_host();
  const ImportOptions whole_options{.weights = gpt.folder.path("w.safetensors"),
                                    .folder = gpt.folder.path("run")};
  nn::write_safetensors(whole_options.weights, whole, {{"model_type", "gpt2"}});
  CHECK(train::import_checkpoint(whole_options).manifest.weights.at("n_layer") == "2");
}

TEST_CASE("weights that no run can have are refused") {
  const Files files;
  CHECK(files.refusal(files.options({{"n", Tensor::from({1}, std::vector<int64_t>{1})}}))
            .find("\"n\": dtype is I64, expected F32, BF16 or F16") != std::string::npos);
  CHECK(files
            .refusal(files.options(
                {{"bn.running_mean", numbers({1}, 0)}, {"bn.running_var", numbers({1}, 0)}}))
            .find("it has no weights") != std::string::npos);
}

TEST_CASE("moments that do not fit are refused, and leave nothing behind") {
  const Files files;
  const auto with = [&](const std::string& name, const Tensor& tensor) {
    std::vector<NamedTensor> state = adam_state();
    bool found = false;
    for (NamedTensor& named : state) {
      if (named.name != name) continue;
      named.tensor = tensor;
      found = true;
    }
    if (!found) state.push_back({name, tensor});
    return files.refusal(files.options(weights, state));
  };
  const auto has = [](const std::string& text, const char* part) {
    INFO(text);
    return text.find(part) != std::string::npos;
  };
  CHECK(has(with("c.exp_avg", numbers({2}, 0)), "\"c.exp_avg\" is of a parameter that "));
  CHECK(has(with("b.lr", numbers({2}, 0)), "\"b.lr\" is not a state of Adam, AdamW or SGD"));
  CHECK(has(with("step", numbers({2}, 0)), "\"step\" is not a state of"));
  CHECK(has(with("b.exp_avg", numbers({3}, 0)), "\"b.exp_avg\": shape is [3], expected [2]"));
  CHECK(has(with("b.step", numbers({2}, 0)), "\"b.step\": shape is [2], expected one number"));
  CHECK(has(with("b.step", half({2})), "\"b.step\": dtype is F16"));
  for (const float step : {-1.0f, 0.5f, NAN, INFINITY, 1e30f}) {
    CHECK(has(with("b.step", Tensor::full({}, step)), "expected a whole number of updates"));
  }
  CHECK(has(with("b.step", Tensor::full({}, 13)),
            "\"a.weight\" has 12 updates, but \"b\" has 13; give"));
  CHECK(has(with("b.exp_avg", numbers({2}, NAN)), "\"b.exp_avg\": element 0 is nan"));
  CHECK(has(with("a.weight.exp_avg_sq", numbers({3, 400}, -1)), "element 0 is -1"));
  ImportOptions options = files.options(weights, adam_state());
  options.optimizer = "plain-sgd";
  CHECK(has(files.refusal(options),
            "it has exp_avg, exp_avg_sq, but the optimizer plain-sgd keeps nothing"));
  options.optimizer = "lion";
  CHECK(has(files.refusal(options), "there is no optimizer \"lion\""));
}

TEST_CASE("importing momentum needs a step of at least 1") {
  const Files files;
  const std::vector<NamedTensor> momentum{{"a.weight.momentum_buffer", numbers({3, 400}, 1)},
                                          {"b.momentum_buffer", numbers({2}, 1)}};
  ImportOptions options = files.options(weights, momentum);
  CHECK(files.refusal(options).find("has no step; give the number of finished steps with --step") !=
        std::string::npos);
  options.step = 0;
  CHECK(files.refusal(options).find("has momentum, but the step is 0") != std::string::npos);
  options.step = 4;
  const CheckpointReader checkpoint(train::import_checkpoint(options).path);
  CHECK(checkpoint.count("b/updates") == 4);
}

TEST_CASE("a folder that a run writes to, or that has the step or a later one, is refused") {
  const Files files;
  ImportOptions options = files.options(weights);
  options.step = 5;
  {
    const train::CheckpointFolder claimed(options.folder);
    CHECK(files.refusal(options).find("another run writes its checkpoints there") !=
          std::string::npos);
  }
  train::import_checkpoint(options);
  CHECK(message_of<InputError>([&] {
          train::import_checkpoint(options);
        }).find("it has a checkpoint of step 5 already") != std::string::npos);
  options.step = 4;
  CHECK(message_of<InputError>([&] {
          train::import_checkpoint(options);
        }).find("step-000000005 is there, and a run would go on from it") != std::string::npos);
  // If the replacement of a checkpoint was interrupted, the checkpoint may be left under another
  // name. It gets its own name back when the next run or import claims the folder.
  const std::filesystem::path newest = options.folder + "/step-000000005";
  std::filesystem::rename(newest, newest.string() + ".before.partial");
  CHECK(message_of<InputError>([&] {
          train::import_checkpoint(options);
        }).find("step-000000005 is there, and a run would go on from it") != std::string::npos);
  CHECK(std::filesystem::exists(newest));
  options.step = 6;
  CHECK(train::import_checkpoint(options).manifest.step == 6);
  std::filesystem::create_directory(options.folder + "/step-000000007");
  std::ofstream(options.folder + "/step-000000007/model.safetensors") << "weights";
  options.step = 7;
  CHECK(message_of<InputError>([&] {
          train::import_checkpoint(options);
        }).find("step-000000007 has files of no checkpoint") != std::string::npos);
  options.folder = files.folder.path("");
  options.step = 9;
  CHECK(message_of<InputError>([&] {
          train::import_checkpoint(options);
        }).find("where the checkpoint is to be written") != std::string::npos);
}

}  // namespace
}  // namespace tessera::test
