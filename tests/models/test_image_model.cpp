#include "models/image/image_model.h"

#include <algorithm>
#include <filesystem>

#include "models/image/resnet.h"
#include "nn/weights_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace tessera::models {
namespace {

using Catch::Matchers::ContainsSubstring;

models::ResNetConfig tiny(int64_t classes = 3) {
  return {.blocks = {1},
          .width = 4,
          .small_images = true,
          .sizes = {.side = 8, .channels = 3, .classes = classes}};
}

ImageModel description() {
  return {.name = "resnet20",
          .sizes = {.side = 8, .channels = 3, .classes = 3},
          .norm = {.mean = {0.1f, 0.2f, 0.3f}, .std = {1, 2, 3}},
          .class_names = {"cat", "dog \"x\"", "caf\xc3\xa9"}};
}

std::string saved(const std::string& path, models::ResNet& model) {
  nn::materialize(model, Device{}, 5);
  for (const auto& [name, statistics] : model.named_statistics()) {
    statistics->mean.copy_from(Tensor::full(statistics->mean.shape(), 0.25f));
  }
  nn::WeightsWriter writer(path, model, image_metadata(description()));
  for (const nn::NamedParameter& named : model.named_parameters()) {
    writer.write(named, named.parameter.tensor().values<float>());
  }
  writer.commit(model, 17);
  return path;
}

TEST_CASE("image models are saved and loaded with statistics and description") {
  const test::TemporaryFolder folder;
  models::ResNet model(tiny());
  const std::string path = saved(folder.path("model.safetensors"), model);
  models::ResNet again(tiny());
  nn::WeightsFile(path, again).load(again);
  const auto before = model.named_parameters();
  const auto after = again.named_parameters();
  for (size_t i = 0; i < before.size(); ++i) {
    const auto a = before[i].parameter.tensor().values<float>();
    const auto b = after[i].parameter.tensor().values<float>();
    CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  }
  for (const auto& [name, statistics] : again.named_statistics()) {
    CHECK(statistics->mean.values<float>()[0] == 0.25f);
    CHECK(statistics->variance.values<float>()[3] == 1);
  }
  const nn::SafetensorsReader file(path);
  int64_t batches = 0;
  file.read<int64_t>(file.entry("bn1.num_batches_tracked"), 0, std::span(&batches, 1));
  CHECK(batches == 17);
  const ImageModel read = read_image_model(path);
  CHECK(read.name == "resnet20");
  CHECK(read.sizes.side == 8);
  CHECK(read.sizes.classes == 3);
  CHECK(read.norm.std == description().norm.std);
  CHECK(read.class_names == description().class_names);
  CHECK_FALSE(read.resizes.has_value());
}

TEST_CASE("the description of an image model says whether images are resized") {
  for (const bool resizes : {false, true}) {
    ImageModel model = description();
    model.resizes = resizes;
    CHECK(parse_image_model("file", image_metadata(model)).resizes == resizes);
  }
}

TEST_CASE("one call saves a model's weights, and one call loads them") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("model.safetensors");
  models::ResNet model(tiny());
  CHECK_THROWS_WITH(nn::save_weights(path, model), ContainsSubstring("has no values here"));
  CHECK_FALSE(std::filesystem::exists(path));
  nn::materialize(model, Device{}, 5);
  model.named_statistics()[0].statistics->mean.values<float>()[1] = 0.5f;
  nn::save_weights(path, model);
  models::ResNet again(tiny());
  nn::load_weights(path, again);
  for (size_t i = 0; i < model.named_parameters().size(); ++i) {
    const Tensor& a = model.named_parameters()[i].parameter.tensor();
    const Tensor& b = again.named_parameters()[i].parameter.tensor();
    CHECK(std::ranges::equal(a.values<float>(), b.values<float>()));
  }
  CHECK(again.named_statistics()[0].statistics->mean.values<float>()[1] == 0.5f);
  models::ResNet wide(tiny());
  wide.to(DType::bf16);
  nn::load_weights(path, wide);
  nn::save_weights(folder.path("rounded.safetensors"), wide);
  const nn::SafetensorsReader rounded(folder.path("rounded.safetensors"));
  float value = 0;
  rounded.read(rounded.entry("conv1.weight"), 0, std::span(&value, 1));
  CHECK(value == float(wide.named_parameters()[0].parameter.tensor().values<BFloat16>()[0]));
}

TEST_CASE("files that do not fit the model are refused, and the tensor is named") {
  const test::TemporaryFolder folder;
  models::ResNet model(tiny());
  const std::string path = saved(folder.path("model.safetensors"), model);
  CHECK_THROWS_WITH(nn::WeightsFile(path, models::ResNet(tiny(5))),
                    ContainsSubstring("shape is [3, 4], expected [5, 4]"));
  models::ResNetConfig deeper = tiny();
  deeper.blocks = {2};
  CHECK_THROWS_WITH(nn::WeightsFile(path, models::ResNet(deeper)),
                    ContainsSubstring("it has no tensor \"layer1.1"));
  models::ResNetConfig two = tiny();
  two.blocks = {2};
  models::ResNet larger(two);
  const std::string large = saved(folder.path("large.safetensors"), larger);
  CHECK_THROWS_WITH(nn::WeightsFile(large, model), ContainsSubstring("is unknown"));
}

TEST_CASE("running statistics that are invalid are refused") {
  const test::TemporaryFolder folder;
  for (const float variance : {-1.0f, NAN, INFINITY}) {
    models::ResNet model(tiny());
    nn::materialize(model, Device{}, 5);
    model.named_statistics()[1].statistics->variance.values<float>()[2] = variance;
    const std::string path = folder.path("model.safetensors");
    nn::WeightsWriter writer(path, model, image_metadata(description()));
    for (const nn::NamedParameter& named : model.named_parameters()) {
      writer.write(named, named.parameter.tensor().values<float>());
    }
    writer.commit(model, 1);
    models::ResNet again(tiny());
    CHECK_THROWS_WITH(nn::WeightsFile(path, again).load(again),
                      ContainsSubstring("layer1.0.bn1.running_var has the value"));
  }
}

TEST_CASE("a ResNet whose stages are not all given blocks is refused") {
  models::ResNetConfig config{.blocks = {2, 0}, .width = 4, .sizes = {}};
  CHECK_THROWS_WITH(models::ResNet(config), "resnet: a stage of 0 blocks, expected at least 1");
  config.blocks = {};
  CHECK_THROWS_AS(models::ResNet(config), InputError);
}

TEST_CASE("invalid descriptions of image models are refused") {
  const test::TemporaryFolder folder;
  const std::string path = folder.path("model.safetensors");
  const auto with = [&](const std::string& text) {
    nn::write_safetensors(path, {}, {{"tessera_image_model", text}});
    return path;
  };
  nn::write_safetensors(path, {});
  CHECK_THROWS_WITH(read_image_model(path),
                    ContainsSubstring("its metadata do not describe a model"));
  CHECK_THROWS_AS(read_image_model(with("{")), InputError);
  CHECK_THROWS_AS(read_image_model(with("[]")), InputError);
  CHECK_THROWS_AS(read_image_model(with(R"({"model":"resnet20"})")), InputError);
  CHECK_THROWS_WITH(
      read_image_model(with(R"({"model":"resnet21","image_size":8,"channels":1,"mean":[1],)"
                            R"("std":[1],"classes":["a"]})")),
      ContainsSubstring(path) && ContainsSubstring("there is no model 'resnet21'"));
  CHECK_THROWS_WITH(
      read_image_model(with(R"({"model":"resnet20","image_size":8,"channels":3,"mean":[1],)"
                            R"("std":[1],"classes":["a"]})")),
      ContainsSubstring("1 means and 1 standard deviations, expected 3 each"));
  const auto grey = [&](const std::string& size, const std::string& deviation) {
    return with(R"({"model":"resnet20","channels":1,"mean":[0],"classes":["a"],"image_size":)" +
                size + R"(,"std":[)" + deviation + "]}");
  };
  CHECK(read_image_model(grey("8", "0.5")).norm.std[0] == 0.5f);
  CHECK_THROWS_AS(read_image_model(grey(R"(8,"resizes":1)", "1")), InputError);
  CHECK_THROWS_WITH(read_image_model(grey("16.9", "1")), ContainsSubstring("whole number"));
  CHECK_THROWS_WITH(read_image_model(grey("8", "0")),
                    ContainsSubstring("a standard deviation of 0"));
  CHECK_THROWS_AS(read_image_model(grey("8", "1e99")), InputError);
  CHECK_THROWS_WITH(read_image_model(with(std::string(200'000, '['))), ContainsSubstring("nested"));
  CHECK_THROWS_WITH(read_image_model(grey("4611686018427387904", "1")),
                    ContainsSubstring("expected 1 to 16384 pixels"));
}

}  // namespace
}  // namespace tessera::models
