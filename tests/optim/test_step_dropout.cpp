#include "optim/zero/step_dropout.h"

#include <optional>
#include <thread>

#include "tests/support/catch.h"

namespace tessera::optim {
namespace {

constexpr DropoutState of_a{.seed = 1, .step = 5, .first_sample = 3};
constexpr DropoutState of_b{.seed = 2, .step = 6, .first_sample = 4};

TEST_CASE("dropout state: that of the open micro-batch, or of the one that was finished last") {
  StepDropout a, b;
  a.begin(of_a);
  CHECK(dropout_state() == of_a);
  a.end_micro_batch();
  CHECK(dropout_state() == of_a);
  b.begin(of_b);
  CHECK(dropout_state() == of_b);
  b.end_micro_batch();
  CHECK(dropout_state() == of_b);
  b.end_step();
  CHECK(dropout_state() == of_a);
  a.end_step();
  CHECK(dropout_state() == DropoutState{});
}

TEST_CASE("dropout state: ambiguous while two micro-batches are open, then that of the other") {
  StepDropout a;
  std::optional<StepDropout> b(std::in_place);
  a.begin(of_a);
  b->begin(of_b);
  CHECK(dropout_state().is_ambiguous);
  CHECK_FALSE(dropout_state().is_set());
  const bool destroys = GENERATE(false, true);
  if (destroys) {
    b.reset();
  } else {
    b->end_micro_batch();
    CHECK(dropout_state() == of_a);
    b->end_step();
  }
  CHECK(dropout_state() == of_a);
  a.end_micro_batch();
  CHECK(dropout_state() == of_a);
  a.end_step();
  CHECK(dropout_state() == DropoutState{});
}

TEST_CASE("dropout state: a step that ends on another thread leaves its state", "[threads]") {
  StepDropout a;
  std::optional<StepDropout> b(std::in_place);
  b->begin(of_b);
  DropoutState seen;
  std::thread([&] {
    dropout_state() = of_a;
    b->end_micro_batch();
    b.reset();
    seen = dropout_state();
  }).join();
  CHECK(seen == of_a);
  a.begin(of_a);  // b is no longer open, so the state is not ambiguous
  CHECK(dropout_state() == of_a);
  a.end_step();
  CHECK(dropout_state() == DropoutState{});
}

}  // namespace
}  // namespace tessera::optim
