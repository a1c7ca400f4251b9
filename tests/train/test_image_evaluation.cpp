#include "train/images/image_evaluation.h"

#include <cmath>
#include <vector>

#include "tests/support/catch.h"

namespace tessera::train {
namespace {

TEST_CASE("a target's place counts larger logits, and equal logits of earlier classes") {
  const std::vector<float> logits = {1, 3, 2, 3, NAN};
  CHECK(place_of_target(std::span(logits).first(4), 1) == 0);
  CHECK(place_of_target(std::span(logits).first(4), 3) == 1);
  CHECK(place_of_target(std::span(logits).first(4), 0) == 3);
  CHECK(place_of_target(logits, 1) == 1);  // NaN ranks before class 1
  CHECK(place_of_target(logits, 4) == 4);  // a target whose logit is NaN is last
}

}  // namespace
}  // namespace tessera::train
