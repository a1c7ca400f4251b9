// Tests how the loss scale changes with steps that overflow and steps that do not.
#include "optim/rules/loss_scaler.h"

#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/support/catch.h"

namespace tessera::optim {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("loss scale: begins at 2^16 and grows after 1,000 good steps") {
  LossScaler scaler(LossScaling{});
  for (int64_t step = 0; step < 999; ++step) scaler.step(false, step, 1.0f);
  CHECK(scaler.scale() == 65536);
  scaler.step(false, 999, 1.0f);
  CHECK(scaler.scale() == 131072);
  for (int64_t step = 1000; step < 2000; ++step) scaler.step(false, step, 1.0f);
  CHECK(scaler.scale() == 262144);
}

TEST_CASE("loss scale: an overflow halves it and the good steps count anew") {
  LossScaler scaler({.initial = 64, .growth_interval = 3});
  const auto scale_after = [&](bool overflow) {
    scaler.step(overflow, 0, 1.0f);
    return scaler.scale();
  };
  CHECK(scale_after(false) == 64);
  CHECK(scale_after(false) == 64);
  CHECK(scale_after(true) == 32);
  CHECK(scale_after(true) == 16);
  CHECK(scale_after(false) == 16);
  CHECK(scale_after(false) == 16);
  CHECK(scale_after(false) == 32);
}

TEST_CASE("loss scale: falling below 1 is an error that names the step and the scale") {
  LossScaler scaler({.initial = 2, .growth_interval = 1000});
  scaler.step(true, 7, 1.0f);
  CHECK(scaler.scale() == 1);
  CHECK_THROWS_WITH(scaler.step(true, 8, 1.0f),
                    ContainsSubstring("step 9") && ContainsSubstring("loss scale of 1"));
  CHECK(scaler.scale() == 1);
  // An infinite loss comes from an overflow in the forward. The loss scale does not change the
  // forward, so the error names the loss instead of the gradients.
  CHECK_THROWS_WITH(scaler.step(true, 8, std::numeric_limits<float>::infinity()),
                    ContainsSubstring("step 9: the loss is not finite (inf) at a loss scale of 1"));
  scaler.step(false, 9, 1.0f);  // a step without overflow is accepted at scale 1
}

TEST_CASE("loss scale: growth stops before the scale becomes infinite") {
  LossScaler scaler({.initial = 0x1p59f, .growth_interval = 1});
  for (int64_t step = 0; step < 100; ++step) scaler.step(false, step, 1.0f);
  CHECK(scaler.scale() == 0x1p60f);
}

TEST_CASE("loss scale: invalid initial scales and growth intervals are refused") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float initial : {0.0f, 0.5f, -2.0f, 3.0f, infinity, std::nanf("")}) {
    CAPTURE(initial);
    CHECK_THROWS_AS(LossScaler({.initial = initial}), InputError);
  }
  CHECK_THROWS_AS(LossScaler({.growth_interval = 0}), InputError);
}

TEST_CASE("loss scale: a restored scale goes on as the one that was saved") {
  LossScaler scaler({.initial = 64, .growth_interval = 3});
  scaler.restore(0x1p60f, 0);
  CHECK(scaler.scale() == 0x1p60f);
  scaler.restore(8, 2);
  CHECK(scaler.scale() == 8);
  CHECK(scaler.good_steps() == 2);
  scaler.step(false, 0, 1.0f);
  CHECK(scaler.scale() == 16);
  CHECK(scaler.good_steps() == 0);
}

TEST_CASE("loss scale: invalid states are not restored, and change nothing") {
  LossScaler scaler({.initial = 64, .growth_interval = 3});
  scaler.step(false, 0, 1.0f);
  for (const float scale : {0.0f, 0.5f, -2.0f, 3.0f, std::nanf("")}) {
    CAPTURE(scale);
    CHECK_THROWS_WITH(scaler.restore(scale, 0),
                      ContainsSubstring("expected a power of two, at least 1"));
  }
  for (const int64_t good_steps : {-1, 3}) {
    CHECK_THROWS_WITH(scaler.restore(8, good_steps),
                      fmt::format("loss scale: {} good steps since its last change, expected 0 to "
                                  "2",
                                  good_steps));
  }
  CHECK(scaler.scale() == 64);
  CHECK(scaler.good_steps() == 1);
}

}  // namespace
}  // namespace tessera::optim
