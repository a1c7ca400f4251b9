// Tests that recomputing the activations of segments changes neither bits nor the calls of the
// hooks gradient_buffer and gradient_complete, and takes less memory.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/autograd.h"
#include "core/memory.h"
#include "core/ops.h"
#include "core/random.h"
#include "core/recompute.h"
#include "core/trace.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Tensors = std::vector<Tensor>;
using Log = std::vector<std::string>;

/// Runs the segment. If `again` is true, its activations are recomputed in backward.
Tensors run(bool again, Tensors inputs, const Segment& segment) {
  return again ? recompute("segment", std::move(inputs), segment) : segment(inputs);
}
Tensor run(bool again, const Tensor& input, const std::function<Tensor(const Tensor&)>& segment) {
  return run(again, Tensors{input}, [segment](const Tensors& in) {
    return Tensors{segment(in[0])};
  })[0];
}

/// The parameters of a test, and a log of the calls of gradient_buffer and gradient_complete.
struct Parameters {
  Tensor make(const std::string& name, const Shape& shape, uint64_t seed) {
    const Tensor parameter = as_parameter(random_tensor(shape, seed));
    Leaf& leaf = *parameter.leaf();
    leaf.name = name;
    leaf.gradient_buffer = [this, name, shape] {
      log.push_back(name + " buffer");
      return Tensor::empty(shape, DType::f32, default_device(), Category::gradients);
    };
    leaf.gradient_complete = [this, name] { log.push_back(name + " complete"); };
    all.push_back(parameter);
    return parameter;
  }

  /// Runs backward. Moves the gradients out of the parameters, and returns the loss and the
  /// gradients.
  Tensors gradients_of(const Tensor& loss) {
    backward(loss);
    Tensors gradients{loss};
    for (const Tensor& parameter : all) {
      gradients.push_back(std::exchange(parameter.leaf()->gradient, {}));
    }
    return gradients;
  }

  /// True if recomputation changes neither the loss, nor the gradients, nor the log of calls.
  bool same(const std::function<Tensor(bool)>& loss) {
    const Tensors expected = gradients_of(loss(false));
    const Log heard = std::exchange(log, {});
    const Tensors actual = gradients_of(loss(true));
    if (std::exchange(log, {}) != heard) return false;
    for (size_t i = 0; i < actual.size(); ++i) {
      if (actual[i].defined() != expected[i].defined()) return false;
      if (actual[i].defined() && !same_bits(actual[i], expected[i])) return false;
    }
    return true;
  }

  Tensors all;
  Log log;
};

int64_t activations() { return memory_ledger().current(Category::activations); }

}  // namespace

TEST_CASE("both runs of a segment may be differentiated, an evaluation may not") {
  Parameters parameters;
  const Tensor x = parameters.make("x", {4}, 1);
  std::vector<bool> seen;
  std::vector<bool> evaluated;  // may_be_differentiated() under the segment's own NoGrad
  const auto segment = [&](const Tensor& in) {
    seen.push_back(may_be_differentiated());
    {
      const NoGrad no_grad;
      evaluated.push_back(may_be_differentiated());
    }
    return ops::mul(in, in);
  };
  {
    const NoGrad no_grad;
    run(true, x, segment);
  }
  backward(ops::sum(run(true, x, segment)));
  CHECK(seen == std::vector<bool>{false, true, true});
  CHECK(evaluated == std::vector<bool>{false, false, false});
}

TEST_CASE("recompute gives the same bits, with parameters in several segments and outside") {
  Parameters parameters;
  const Tensor x = parameters.make("x", {3, 8}, 1);
  const Tensor w = parameters.make("w", {8, 8}, 2);
  const Tensor scale = parameters.make("scale", {8}, 3);
  const Tensor shift = parameters.make("shift", {8}, 4);
  const auto segment = [&](const Tensor& in) {
    const Tensor h = ops::layer_norm(in, scale, shift);
    const Tensor up = ops::linear(h, w, {}, {.activation = Activation::gelu});
    return ops::add(in, ops::linear(up, w, {}));
  };
  CHECK(parameters.same([&](bool again) {
    Tensor h = ops::linear(x, w, shift);
    for (int i = 0; i < 3; ++i) h = run(again, h, segment);
    h = ops::mul(ops::layer_norm(h, scale, shift), run(again, h, segment));
    return ops::sum(ops::linear(h, w, {}));
  }));
}

TEST_CASE("gradients of a segment's input are added in the order of backward") {
  // x is used several times inside and outside the segment. The bits of x's gradient show in which
  // order the contributions are added.
  Parameters parameters;
  const Tensor p = parameters.make("p", {64}, 1);
  CHECK(parameters.same([&](bool again) {
    const Tensor x = ops::scale(p, 0.3f);
    Tensor sum = ops::add(ops::mul(x, x), ops::scale(x, 0.7f));
    sum = ops::add(sum, run(again, x, [](const Tensor& in) {
            return ops::add(ops::mul(in, ops::gelu(in)), ops::scale(in, 0.1f));
          }));
    return ops::sum(ops::mul(ops::add(sum, ops::scale(x, 1.1f)), x));
  }));
  // One tensor is passed as both inputs.
  CHECK(parameters.same([&](bool again) {
    const Tensor x = ops::scale(p, 0.3f);
    const Tensors out = run(again, Tensors{x, x}, [](const Tensors& in) {
      return Tensors{ops::mul(ops::gelu(in[0]), ops::mul(in[1], ops::add(in[0], in[1])))};
    });
    return ops::sum(ops::mul(out[0], x));
  }));
}

TEST_CASE("a segment may have many inputs and outputs, and may return its inputs") {
  Parameters parameters;
  const Tensor p = parameters.make("p", {4}, 1);
  const Tensor q = parameters.make("q", {4}, 2);
  const Tensor constant = random_tensor({4}, 3);
  const Segment segment = [&](const Tensors& in) {
    CHECK_FALSE(in[1].defined());
    const Tensor product = ops::mul(in[0], in[2]);
    const Tensor view = ops::reshape(in[0], {2, 2});
    return Tensors{product, in[0], {}, q, product, in[1], constant, in[2], view};
  };
  const auto outputs_of = [&](bool again, const Tensor& x) {
    return run(again, Tensors{x, {}, q}, segment);
  };
  const Tensor x = ops::scale(p, 2);
  const Tensors out = outputs_of(true, x);
  REQUIRE(out.size() == 9);
  CHECK(out[1].same(x));
  CHECK_FALSE(out[2].defined());
  CHECK(out[3].same(q));
  CHECK(out[4].same(out[0]));
  CHECK_FALSE(out[5].defined());
  CHECK_FALSE(constant.requires_grad());
  CHECK(same_bits(out[6], constant));
  CHECK(out[7].same(q));
  CHECK(out[8].raw() == x.raw());
  CHECK(parameters.same([&](bool again) {
    const Tensors y = outputs_of(again, ops::scale(p, 2));
    Tensor sum = ops::add(ops::mul(y[0], y[1]), ops::mul(y[3], y[4]));
    sum = ops::add(ops::mul(sum, y[6]), ops::mul(y[7], y[0]));
    return ops::sum(ops::mul(sum, ops::reshape(y[8], {4})));
  }));
  for (const size_t used : {0, 1, 8}) {
    CHECK(parameters.same([&](bool again) {
      return ops::sum(outputs_of(again, ops::scale(p, 2))[used]);
    }));
  }
}

TEST_CASE("an unused output gets no gradient, and an unreached segment does not run again") {
  Parameters parameters;
  const Tensor p = parameters.make("p", {4}, 1);
  const Tensor q = parameters.make("q", {4}, 2);
  const Segment segment = [&](const Tensors& in) {
    return Tensors{ops::mul(in[0], p), ops::mul(in[0], q)};
  };
  const auto loss = [&](bool again) {
    const Tensors out = run(again, Tensors{ops::scale(p, 3)}, segment);
    return ops::sum(out[0]);
  };
  CHECK(parameters.same(loss));
  parameters.gradients_of(loss(true));
  CHECK(parameters.log == Log{"p buffer", "p complete"});
  // A segment that no gradient reaches is not run again.
  int runs = 0;
  const Tensor unreached = run(true, p, [&runs](const Tensor& in) {
    ++runs;
    return ops::gelu(in);
  });
  backward(ops::sum(record("first_only", p.detach(), {q, unreached},
                           [](const Tensor& dy, InputGradients& grads) { grads.pass(0, dy); })));
  CHECK(runs == 1);
}

TEST_CASE("segments may contain segments") {
  Parameters parameters;
  const Tensor p = parameters.make("p", {5, 5}, 1);
  const Tensor w = parameters.make("w", {5, 5}, 2);
  int runs = 0;
  const auto inner = [&](const Tensor& in) {
    ++runs;
    return ops::linear(ops::gelu(in), w, {});
  };
  const auto outer = [&](bool again) {
    return [&, again](const Tensor& in) {
      Tensor h = run(again, in, inner);
      h = ops::mul(h, ops::matmul(in, w));
      return run(again, h, inner);
    };
  };
  const auto loss = [&](bool again) {
    return ops::sum(run(again, ops::linear(p, w, {}), outer(again)));
  };
  CHECK(parameters.same(loss));
  runs = 0;
  backward(loss(true));
  // Each of the two inner segments runs three times: in the forward, when the outer segment is
  // recomputed, and for its own backward.
  CHECK(runs == 6);
}

TEST_CASE("frozen inputs get no gradient, and a segment of only them is not recorded") {
  Parameters parameters;
  const Tensor p = parameters.make("p", {4}, 1);
  const Tensor frozen = parameters.make("frozen", {4}, 2);
  frozen.leaf()->trainable = false;
  const Tensor constant = random_tensor({4}, 3);
  int uses = 0;
  frozen.leaf()->about_to_be_used = [&uses] { ++uses; };
  const auto product = [](const Tensors& in) {
    return Tensors{ops::mul(ops::mul(in[0], in[1]), in[2])};
  };
  CHECK(parameters.same([&](bool again) {
    return ops::sum(run(again, Tensors{p, frozen, constant}, product)[0]);
  }));
  CHECK(uses > 0);
  CHECK_FALSE(frozen.leaf()->gradient.defined());
  const Tensors out = recompute("segment", {constant, frozen}, [&](const Tensors& in) {
    return Tensors{ops::mul(ops::mul(in[0], in[1]), frozen)};
  });
  CHECK_FALSE(out[0].requires_grad());
}

TEST_CASE("a segment draws the same dropout again, even if the dropout state has changed") {
  const DropoutState before = dropout_state();
  Parameters parameters;
  const Tensor p = parameters.make("p", {16, 16}, 1);
  CHECK(parameters.same([&](bool again) {
    dropout_state() = {.seed = 3, .step = 5, .first_sample = 7};
    const Tensor y = run(again, ops::scale(p, 2), [](const Tensor& in) {
      return ops::dropout(ops::gelu(ops::dropout(in, 0.5f, 1)), 0.5f, 2);
    });
    dropout_state() = {.seed = 4, .step = 6, .first_sample = 8};
    return ops::sum(ops::mul(y, y));
  }));
  CHECK(dropout_state().step == 6);
  dropout_state() = before;
}

TEST_CASE("a chain of segments holds their inputs, and in backward also one segment") {
  constexpr int64_t segments = 8;
  constexpr int64_t depth = 10;
  constexpr int64_t bytes = 4096 * 4;
  const Tensor p = as_parameter(random_tensor({4096}, 1));
  const auto segment = [](const Tensor& in) {
    Tensor h = in;
    for (int64_t i = 0; i < depth; ++i) h = ops::gelu(h);
    return h;
  };
  struct Held {
    int64_t after_forward, peak;
  };
  const auto held = [&](bool again) {
    const int64_t before = activations();
    Tensor loss;
    {
      Tensor h = ops::scale(p, 1);
      for (int64_t i = 0; i < segments; ++i) h = run(again, h, segment);
      loss = ops::sum(h);
    }
    Held result{activations() - before - 4, 0};
    memory_ledger().reset_peaks();
    backward(loss);
    loss = {};
    result.peak = memory_ledger().peak(Category::activations) - before;
    CHECK(activations() == before);
    return result;
  };
  CHECK(held(false).after_forward == segments * depth * bytes);
  const Held again = held(true);
  CHECK(again.after_forward == segments * bytes);
  // The peak includes the inputs of all segments, the values of one segment, and the incoming
  // gradient. It also includes the loss and the loss's gradient (8 bytes).
  CHECK(again.peak <= (segments + depth + 1) * bytes + 8);
}

TEST_CASE("a segment's input that can be recomputed is not kept either") {
  const Tensor p = as_parameter(random_tensor({64, 64}, 1));
  const Tensor scale = as_parameter(random_tensor({64}, 2));
  const Tensor shift = as_parameter(random_tensor({64}, 3));
  const int64_t before = activations();
  const Tensor loss = ops::sum(run(true, ops::layer_norm(p, scale, shift),
                                   [](const Tensor& in) { return ops::gelu(in); }));
  CHECK(activations() - before < 64 * 64 * 4);
  backward(loss);
}

TEST_CASE("the trace shows a segment's second run") {
  trace::take_events();
  const Tensor p = as_parameter(random_tensor({4}, 1));
  const Tensor loss = ops::sum(run(true, p, [](const Tensor& in) { return ops::gelu(in); }));
  trace::enable(true);
  backward(loss);
  trace::enable(false);
  Log names;
  for (const auto& event : trace::take_events()) names.push_back(event.name);
  // Events are listed in the order of their ends. The first "gelu" runs inside "recompute"; the
  // second is gelu's backward.
  CHECK(names == Log{"sum", "gelu", "recompute", "gelu", "segment", "backward"});
}

TEST_CASE("with gradients off, a segment is simply called") {
  const Tensor p = as_parameter(random_tensor({4}, 1));
  const NoGrad no_grad;
  const auto hand_on = [&p](const Tensor& in) {
    CHECK(in.same(p));
    return in;
  };
  CHECK(run(true, p, hand_on).same(p));
}

TEST_CASE("a segment that reads a tensor with history from outside is an error") {
  const Tensor p = as_parameter(random_tensor({4}, 1));
  const Tensor h = ops::scale(p, 2);
  const auto captures = [&h](const Tensor& in) { return ops::mul(in, h); };
  CHECK_THROWS_WITH(run(true, ops::scale(p, 3), captures),
                    ContainsSubstring("segment: the segment uses a tensor of shape [4] that has "
                                      "history but is not among its inputs"));
  CHECK(grad_enabled());
  // A segment may return h, whose history lies outside of the segment. But the segment's operations
  // may read h only after detach().
  const Tensors out = run(true, Tensors{p}, [&h](const Tensors& in) {
    return Tensors{h, ops::mul(in[0], h.detach())};
  });
  CHECK(out[0].same(h));
  CHECK(out[1].requires_grad());
}

TEST_CASE("a segment that behaves differently when it runs again is an error") {
  const Tensor p = as_parameter(random_tensor({4}, 1));
  const Tensor q = as_parameter(random_tensor({4}, 2));
  q.leaf()->name = "q";
  int runs = 0;
  const DropoutState before = dropout_state();
  SECTION("another number of outputs") {
    const Tensors out = run(true, Tensors{p}, [&runs](const Tensors& in) {
      return ++runs == 1 ? Tensors{ops::gelu(in[0]), ops::gelu(in[0])} : Tensors{ops::gelu(in[0])};
    });
    CHECK_THROWS_WITH(backward(ops::sum(out[0])),
                      ContainsSubstring("1 outputs when it runs again, expected 2"));
  }
  SECTION("another parameter") {
    const Tensor y = run(true, p, [&](const Tensor& in) {
      return ++runs == 1 ? ops::gelu(in) : ops::mul(in, q);
    });
    CHECK_THROWS_WITH(backward(ops::sum(y)),
                      ContainsSubstring("segment: 'mul' uses parameter 'q' when the segment runs "
                                        "again"));
  }
  SECTION("an exception") {
    const Tensor y = run(true, p, [&runs](const Tensor& in) {
      dropout_state().step += runs;
      if (++runs > 1) fail("as it must");
      return ops::gelu(in);
    });
    CHECK_THROWS_WITH(backward(ops::sum(y)), ContainsSubstring("as it must"));
  }
  CHECK(grad_enabled());
  CHECK(dropout_state().step == before.step);
  backward(ops::sum(ops::scale(p, 2)));
  CHECK(values_of(p.leaf()->gradient) == Values{2, 2, 2, 2});
}
