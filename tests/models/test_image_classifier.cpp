// Tests that the image classifiers have as many parameters as torchvision's, with the same names.
// Also tests the shape of their results, and error messages.
#include <algorithm>
#include <map>
#include <set>

#include "core/autograd.h"
#include "core/random.h"
#include "models/image/image_classifier.h"
#include "models/image/resnet.h"
#include "models/image/vgg.h"
#include "tests/support/catch.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr models::ImageSizes imagenet{.side = 224, .channels = 3, .classes = 1000};

std::set<std::string> names_of(const nn::Module& model) {
  std::set<std::string> names;
  for (const auto& named : model.named_parameters()) names.insert(named.name);
  for (const auto& named : model.named_statistics()) names.insert(named.name + ".running_mean");
  return names;
}

TEST_CASE("image classifiers have as many parameters as torchvision's") {
  const std::map<std::string, int64_t> expected = {
      {"resnet18", 11'689'512}, {"resnet34", 21'797'672}, {"resnet50", 25'557'032},
      {"vgg11", 132'863'336},   {"vgg16", 138'357'544},
  };
  for (const auto& [name, parameters] : expected) {
    CAPTURE(name);
    CHECK(models::image_classifier(name, imagenet)->parameter_count() == parameters);
  }
  // He et al., table 6, count the parameters without projections. Tessera's ResNet-20 also has 1x1
  // convolutions with norms: 16 * 32 + 64 + 32 * 64 + 128 parameters.
  const int64_t projections = 2752;
  CHECK(models::image_classifier("resnet20", {})->parameter_count() == 269'722 + projections);
}

TEST_CASE("image classifiers name their parameters as torchvision does") {
  const auto resnet18 = models::image_classifier("resnet18", imagenet);
  const std::set<std::string> names = names_of(*resnet18);
  CHECK(names.size() == 62 + 20);
  for (const char* name : {"conv1.weight", "bn1.bias", "layer1.0.conv2.weight", "bn1.running_mean",
                           "layer2.0.downsample.0.weight", "layer4.1.bn2.running_mean",
                           "layer2.0.downsample.1.running_mean", "fc.bias"}) {
    CAPTURE(name);
    CHECK(names.contains(name));
  }
  const auto resnet50 = models::image_classifier("resnet50", imagenet);
  CHECK(names_of(*resnet50).size() == 161 + 53);
  CHECK(names_of(*resnet50).contains("layer3.5.conv3.weight"));
  const auto vgg11 = models::image_classifier("vgg11", imagenet);
  CHECK(names_of(*vgg11).size() == 22);
  CHECK(names_of(*vgg11).contains("features.18.weight"));
  CHECK(names_of(*vgg11).contains("classifier.6.bias"));
  for (const auto& named : vgg11->named_parameters()) {
    if (named.name == "classifier.0.weight") CHECK(named.parameter.shape() == Shape{4096, 25088});
  }
}

void check_labels(const std::string& name) {
  CAPTURE(name);
  const auto model = models::image_classifier(name, {.side = 32, .channels = 1, .classes = 3});
  nn::materialize(*model);
  const NoGrad no_grad;
  const Tensor images = Tensor::full({2, 32, 32, 1}, 0.5f);
  dropout_state() = {.step = 0};
  CHECK((*model)(images).shape() == Shape{2, 3});
  dropout_state() = {};
  model->eval();
  CHECK((*model)(images).shape() == Shape{2, 3});
}

TEST_CASE("ResNet-20 and VGG-11 label an image, in training and in evaluation") {
  check_labels("resnet20");
  check_labels("vgg11");
}

TEST_CASE("every image classifier labels an image, in training and in evaluation", "[slow]") {
  for (const std::string& name : models::image_classifier_names()) check_labels(name);
}

TEST_CASE("invalid image classifiers are refused") {
  CHECK_THROWS_WITH(models::image_classifier("resnet19", {}), ContainsSubstring("resnet18"));
  CHECK_THROWS_WITH(models::image_classifier("resnet19", {}), ContainsSubstring("vgg11"));
  CHECK_THROWS_AS(models::image_classifier("resnet20", {.classes = 0}), InputError);
  CHECK_THROWS_WITH(models::image_classifier("vgg11", {.side = 28}),
                    ContainsSubstring("expected at least 32 x 32"));
  CHECK_THROWS_AS(models::ResNet({.blocks = {}, .width = 16, .sizes = {}}), InputError);
}

TEST_CASE("a batch norm in evaluation needs statistics") {
  nn::BatchNorm2d norm(4);
  norm.eval();
  CHECK_THROWS_WITH(norm(Tensor::full({1, 2, 2, 4}, 1)),
                    ContainsSubstring("call materialize or create an optimizer"));
}

}  // namespace
}  // namespace tessera::test
