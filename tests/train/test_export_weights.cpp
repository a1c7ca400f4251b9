#include "train/checkpoint/export_weights.h"

#include "core/error.h"
#include "models/gpt/gpt_config_file.h"
#include "models/gpt/gpt_metadata.h"
#include "models/gpt/gpt_weights.h"
#include "models/image/image_classifier.h"
#include "models/image/image_model.h"
#include "nn/weights_file.h"
#include "tests/support/catch.h"
#include "tests/support/checkpoints.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

using train::CheckpointReader;

constexpr models::GptConfig tiny{.layers = 1,
                                 .heads = 2,
                                 .width = 4,
                                 .context = 3,
                                 .vocab = 70,
                                 .dropout = 0.1f,
                                 .epsilon = 1e-6f,
                                 .initializer_range = 0.3f};

// Returns the state of a model in the form of a checkpoint: each tensor and its entry in the
// manifest.
std::vector<Stated> state_of(const nn::Module& model) {
  std::vector<Stated> state;
  for (const nn::NamedParameter& named : model.named_parameters()) {
    const Tensor& tensor = named.parameter.tensor();
    state.push_back({.of = {named.name, optim::value_kind, DType::f32, tensor.shape()},
                     .values = tensor.flat(0, tensor.elements())});
    state.push_back(stated_count(named.name, 3));
  }
  for (const auto& [name, statistics] : model.named_statistics()) {
    const Shape& shape = statistics->mean.shape();
    state.push_back({{name, optim::running_mean_kind, DType::f32, shape}, statistics->mean});
    state.push_back(
        {{name, optim::running_variance_kind, DType::f32, shape}, statistics->variance});
  }
  return state;
}

std::string exported(const TemporaryFolder& folder, const std::vector<Stated>& state,
                     const train::Manifest& manifest) {
  const CheckpointReader checkpoint(write_checkpoint(folder.path("run"), state, manifest));
  train::export_weights(checkpoint, folder.path("out.safetensors"));
  return folder.read("out.safetensors");
}

std::string refusal(const std::vector<Stated>& state, const train::Manifest& manifest) {
  const TemporaryFolder folder;
  const std::string message = message_of<InputError>([&] { exported(folder, state, manifest); });
  CHECK(folder.entries() == 1);  // only the checkpoint exists: nothing was exported
  return message;
}

TEST_CASE("a GPT is exported as GptWriter writes it, with its config.json") {
  const TemporaryFolder folder;
  const TemporaryFolder expected;
  models::Gpt model(tiny);
  nn::materialize(model, Device{}, 1);
  models::GptWriter writer(expected.path("out.safetensors"), model);
  for (const nn::NamedParameter& named : model.named_parameters()) {
    writer.write(named, named.parameter.tensor().values<float>());
  }
  writer.commit();
  std::vector<Stated> state = state_of(model);
  std::ranges::reverse(state);  // the order of a checkpoint's tensors does not matter
  const std::string bytes =
      exported(folder, state, {.step = 3, .weights = models::gpt_metadata(model.config())});
  CHECK(bytes == expected.read("out.safetensors"));
  CHECK(folder.read("config.json") == expected.read("config.json"));
}

TEST_CASE("an export keeps a config.json of the same model, and replaces another one") {
  const TemporaryFolder folder;
  models::Gpt model(tiny);
  nn::materialize(model, Device{}, 1);
  const train::Manifest manifest{.step = 3, .weights = models::gpt_metadata(model.config())};
  const std::string text = models::gpt_config_text(tiny);
  const std::string same = R"({"task_specific_params": {}, )" + text.substr(1);
  folder.file("config.json", same);
  exported(folder, state_of(model), manifest);
  CHECK(folder.read("config.json") == same);
  // The weights are F32, so other dtypes in it are replaced.
  const auto at = same.find(R"("float32")");
  REQUIRE(at != std::string::npos);
  std::string half = same;
  folder.file("config.json", half.replace(at, 9, R"("float16")"));
  exported(folder, state_of(model), manifest);
  CHECK(folder.read("config.json").find(R"("torch_dtype": "float32")") != std::string::npos);
  CHECK(folder.read("config.json").find("task_specific_params") != std::string::npos);
  models::GptConfig other = tiny;
  other.epsilon = 1e-5f;
  folder.file("config.json", models::gpt_config_text(other));
  exported(folder, state_of(model), manifest);
  CHECK(folder.read("config.json") == text);
}

TEST_CASE("a GPT's metadata are read back to the same numbers") {
  const models::GptConfig config = models::parse_gpt_metadata("m", models::gpt_metadata(tiny));
  CHECK(config.layers == 1);
  CHECK(config.heads == 2);
  CHECK(config.width == 4);
  CHECK(config.context == 3);
  CHECK(config.vocab == 70);
  CHECK(config.dropout == 0.1f);
  CHECK(config.epsilon == 1e-6f);
  CHECK(config.initializer_range == 0.3f);
  for (const char* key : {"n_layer", "n_head", "vocab_size", "layer_norm_epsilon"}) {
    for (const char* value : {"", "x", "1x", " 1", "-1", "nan", "inf", "1e99", "0"}) {
      CAPTURE(key, value);
      auto metadata = models::gpt_metadata(tiny);
      metadata[key] = value;
      CHECK_THROWS_AS(models::parse_gpt_metadata("m", metadata), InputError);
    }
    auto metadata = models::gpt_metadata(tiny);
    metadata.erase(key);
    CHECK(message_of<InputError>([&] { models::parse_gpt_metadata("m", metadata); }) ==
          std::string("m: the description of the GPT has no ") + key);
  }
}

TEST_CASE("a classifier of images is exported as its program saves it") {
  const TemporaryFolder folder;
  const models::ImageModel image{.name = "resnet20",
                                 .sizes = {.side = 8, .channels = 3, .classes = 2},
                                 .norm = {.mean = {0, 0, 0}, .std = {1, 1, 1}},
                                 .class_names = {"cat", "dog"}};
  const auto model = models::image_classifier(image.name, image.sizes);
  nn::materialize(*model, Device{}, 1);
  nn::WeightsWriter writer(folder.path("expected"), *model, models::image_metadata(image));
  for (const nn::NamedParameter& named : model->named_parameters()) {
    writer.write(named, named.parameter.tensor().values<float>());
  }
  writer.commit(*model, 36);  // (10 - 1) updates of 4 micro-batches
  const train::Manifest manifest{.step = 10,
                                 .skipped = 1,
                                 .run = {{"global_batch", "8"}, {"micro_batch", "2"}},
                                 .weights = models::image_metadata(image)};
  CHECK(exported(folder, state_of(*model), manifest) == folder.read("expected"));
}

TEST_CASE("num_batches_tracked counts all updates, or is what an imported file says") {
  const auto batches = [](const dist::Settings& run, std::map<std::string, std::string> weights) {
    return train::batches_tracked(
        {.step = 5, .skipped = 2, .run = run, .weights = std::move(weights)});
  };
  CHECK(batches({{"micro_batch", "4"}, {"global_batch", "12"}}, {}) == 9);
  CHECK(batches({}, {{train::imported_batches_key, "120"}}) == 120);
  CHECK(batches({}, {}) == 0);
  CHECK(batches({{"global_batch", "12"}}, {}) == 0);
  CHECK(batches({{"micro_batch", "0"}, {"global_batch", "12"}}, {}) == 0);
  CHECK(batches({{"micro_batch", "x"}, {"global_batch", "12"}}, {}) == 0);
  CHECK(batches({{"micro_batch", "1"}, {"global_batch", "9223372036854775807"}}, {}) == 0);
}

TEST_CASE("parameters of other models are exported under their names, in f32") {
  const TemporaryFolder folder;
  std::vector<Stated> state{stated("up.weight", "value", {2, 300}, std::vector<float>(600, 0.5f)),
                            stated("up.weight", "exp_avg", {2, 300}, std::vector<float>(600, 1)),
                            stated("norm", "running_mean", {2}, {1, 2}),
                            stated("norm", "running_var", {2}, {3, 4})};
  const Tensor frozen = Tensor::empty({2}, DType::bf16, Device{});
  frozen.data<BFloat16>()[0] = BFloat16(1.5f);
  frozen.data<BFloat16>()[1] = BFloat16(-2.0f);
  state.push_back({{"frozen", "value", DType::bf16, {2}}, frozen});
  exported(folder, state, {.step = 1});
  const nn::SafetensorsReader file(folder.path("out.safetensors"));
  CHECK(file.metadata() == nn::SafetensorsMetadata{{"format", "pt"}});
  std::map<std::string, std::vector<float>> values;
  for (const nn::SafetensorsEntry& entry : file.entries()) {
    if (entry.dtype != "F32") continue;
    values[entry.name].resize(static_cast<size_t>(entry.elements()));
    file.read<float>(entry, 0, values[entry.name]);
  }
  CHECK(values.size() == 4);
  CHECK(values["up.weight"] == std::vector<float>(600, 0.5f));
  CHECK(values["frozen"] == std::vector<float>{1.5f, -2});
  CHECK(values["norm.running_mean"] == std::vector<float>{1, 2});
  CHECK(values["norm.running_var"] == std::vector<float>{3, 4});
  CHECK(file.entry("norm.num_batches_tracked").dtype == "I64");
}

TEST_CASE("a manifest that describes another model is refused, and nothing is written") {
  models::Gpt model(tiny);
  nn::materialize(model, Device{}, 1);
  const auto with = [&](const char* key, const char* value) {
    train::Manifest manifest{.step = 1, .weights = models::gpt_metadata(tiny)};
    manifest.weights[key] = value;
    return refusal(state_of(model), manifest);
  };
  CHECK(
      with("vocab_size", "71")
          .find(
              "has wte.weight with the shape [71, 4], but the checkpoint has the shape [70, 4]") !=
      std::string::npos);
  CHECK(with("n_layer", "2").find("has h.1.ln_1.weight, but the checkpoint does not") !=
        std::string::npos);
  CHECK(with("n_layer", "16384").find("a GPT of 16384 layers, but has only 32 tensors") !=
        std::string::npos);
  CHECK(with("n_head", "3").find("manifest.json: n_embd 4 is not divisible by n_head 3") !=
        std::string::npos);
  std::vector<Stated> more = state_of(model);
  more.push_back(stated("lm_head.weight", "value", {1}, {0}));
  CHECK(refusal(more, {.step = 1, .weights = models::gpt_metadata(tiny)})
            .find("has 16 tensors of weights, but the checkpoint has 17") != std::string::npos);
  CHECK(
      refusal({stated_count("w", 1), {{"w", "value", DType::i64, {}}, stated_count("", 1).values}},
              {.step = 1})
          .find("\"w/value\" is i64, and only floats can be exported") != std::string::npos);
}

}  // namespace
}  // namespace tessera::test
