// Tests the hyper-parameters that each update rule gives to a parameter group.
#include "optim/rules/update_rule.h"

#include "tests/support/catch.h"

namespace tessera::optim {
namespace {

// A rule and its hyper-parameters. All rules have the learning rate 1 and the weight decay 0.0625.
struct Case {
  UpdateRule rule;
  float beta1 = 0;    // 0 in beta1, beta2 or epsilon: the rule has no such parameter
  float beta2 = 0;
  float epsilon = 0;
  bool decoupled_decay = true;
};

TEST_CASE("update rules: a group has its own hyper-parameters, and the rule's for the rest") {
  const Case cases[] = {
      {Sgd{.learning_rate = 1, .momentum = 0.5f, .weight_decay = 0.0625f}, 0.5f},
      {Adam{.learning_rate = 1, .beta1 = 0.5f, .beta2 = 0.75f, .epsilon = 0.1f,
            .weight_decay = 0.0625f},
       0.5f, 0.75f, 0.1f, false},
      {AdamW{.learning_rate = 1, .beta1 = 0.5f, .beta2 = 0.75f, .epsilon = 0.1f,
             .weight_decay = 0.0625f},
       0.5f, 0.75f, 0.1f},
      {Adagrad{.learning_rate = 1, .epsilon = 0.1f, .weight_decay = 0.0625f}, 0, 0, 0.1f},
      {RowwiseAdagrad{.learning_rate = 1, .epsilon = 0.1f, .weight_decay = 0.0625f}, 0, 0, 0.1f}};
  for (const Case& of : cases) {
    CAPTURE(of.rule.state_names());
    const UpdateHyper rule = of.rule.hyper(2, {});
    CHECK(rule.learning_rate == 1);
    CHECK(rule.beta1 == of.beta1);
    CHECK(rule.beta2 == of.beta2);
    CHECK(rule.epsilon == of.epsilon);
    CHECK(rule.weight_decay == 0.0625f);
    CHECK(rule.decoupled_decay == of.decoupled_decay);
    const UpdateHyper group = of.rule.hyper(
        2, {.learning_rate = 4.0f, .beta1 = 0.25f, .beta2 = 0.125f, .weight_decay = 0.5f});
    CHECK(group.learning_rate == 4);
    CHECK(group.beta1 == (of.beta1 > 0 ? 0.25f : 0));
    CHECK(group.beta2 == (of.beta2 > 0 ? 0.125f : 0));
    CHECK(group.epsilon == of.epsilon);
    CHECK(group.weight_decay == 0.5f);
    // In update number 2, Adam's bias corrections are 1 - beta^2.
    CHECK(group.bias_correction1 == (of.beta2 > 0 ? 0.9375f : 1));
    CHECK(group.bias_correction2 == (of.beta2 > 0 ? 0.984375f : 1));
  }
}

}  // namespace
}  // namespace tessera::optim
