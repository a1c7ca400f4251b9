#include "apps/predict_transform.h"

#include "tests/support/catch.h"

namespace tessera::apps {
namespace {

models::ImageModel model(std::optional<bool> resizes) {
  return {.name = "resnet20",
          .sizes = {.side = 32, .channels = 3, .classes = 1},
          .norm = {.mean = {1, 2, 3}, .std = {4, 5, 6}},
          .resizes = resizes,
          .class_names = {"cat"}};
}

TEST_CASE("images are prepared for a model as in its evaluation") {
  const data::ImageShape same{32, 32, 3};
  const data::ImageShape other{32, 40, 3};
  const double cut = data::ImageTransformOptions{}.evaluated_share;
  REQUIRE(cut < 1);
  // The model was trained on a folder of images, which were all resized. In evaluation, their edges
  // were cut off.
  for (const data::ImageShape& image : {same, other}) {
    const data::ImageTransformOptions options = predict_transform(model(true), image);
    CHECK(options.resizes);
    CHECK(options.evaluated_share == cut);
    CHECK(options.shape == same);
    CHECK(options.norm.mean == std::vector<float>{1, 2, 3});
    CHECK(options.norm.std == std::vector<float>{4, 5, 6});
  }
  // The model was trained on images of its own size, so it has seen whole images. An image of
  // another size is resized, and as little as possible is cut off.
  CHECK_FALSE(predict_transform(model(false), same).resizes);
  CHECK(predict_transform(model(false), other).resizes);
  CHECK(predict_transform(model(false), other).evaluated_share == 1);
  // Model files of earlier versions do not say if training resized its images. With such a model,
  // only images of another size are resized, and their edges are cut off as usual.
  CHECK_FALSE(predict_transform(model({}), same).resizes);
  CHECK(predict_transform(model({}), other).resizes);
  CHECK(predict_transform(model({}), other).evaluated_share == cut);
}

}  // namespace
}  // namespace tessera::apps
