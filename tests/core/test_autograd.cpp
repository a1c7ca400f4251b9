// Tests backward over all kinds of graphs: several uses, several outputs, aliases, very long
// chains, and reused graphs. Also tests NoGrad, saved(), recomputation of single operations, and
// observers of outputs. test_autograd_hooks.cpp tests the hooks of parameters.
#include <string>
#include <vector>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/add.h"
#include "core/ops/fill.h"
#include "core/ops/scale.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::ContainsSubstring;

namespace {

Tensor parameter(const std::vector<float>& values) {
  return as_parameter(Tensor::from<float>({static_cast<int64_t>(values.size())}, values));
}

std::vector<float> gradient_values(const Tensor& x) {
  const auto values = x.leaf()->gradient.values<float>();
  return {values.begin(), values.end()};
}

using Floats = std::vector<float>;

/// Returns x. The backward passes the gradient on unchanged.
Tensor passed(const Tensor& x) {
  return record("passed", x.detach(), {x},
                [](const Tensor& dy, InputGradients& grads) { grads.pass(0, dy); });
}

/// Returns two outputs, 2x and 3x. Backward records in `seen` which of the two outputs have a
/// gradient.
std::vector<Tensor> two_and_three_times(const Tensor& x, std::vector<bool>& seen) {
  std::vector<Tensor> outputs{ops::scale(x.detach(), 2), ops::scale(x.detach(), 3)};
  record("two_and_three_times", outputs, {x},
         [&seen](std::span<const Tensor> dys, InputGradients& grads) {
           seen = {dys[0].defined(), dys[1].defined()};
           const Tensor dx = grads.destination(0);
           const Context context = test_context();
           kernels::fill(context, dx, 0);
           for (size_t i = 0; i < 2; ++i) {
             if (!dys[i].defined()) continue;
             const Tensor part = Tensor::empty(dx.shape());
             kernels::scale(context, part, dys[i], i == 0 ? 2.0f : 3.0f);
             kernels::add(context, dx, dx, part);
           }
         });
  return outputs;
}

}  // namespace

TEST_CASE("the gradients of several uses of one tensor add up") {
  const Tensor x = parameter({1, 2, 3});
  SECTION("of a parameter") {
    // x^2 + 5x + x
    backward(ops::sum(ops::add(ops::add(ops::mul(x, x), ops::scale(x, 5)), x)));
    CHECK(gradient_values(x) == Floats{8, 10, 12});
  }
  SECTION("of an intermediate value") {
    const Tensor h = ops::scale(x, 2);
    backward(ops::sum(ops::add(ops::mul(h, h), ops::add(h, h))));  // 4x^2 + 4x
    CHECK(gradient_values(x) == Floats{12, 20, 28});
  }
  SECTION("twice in one operation") {
    backward(ops::sum(ops::add(x, x)));
    CHECK(gradient_values(x) == Floats{2, 2, 2});
  }
}

TEST_CASE("backward scales gradients by the given factor") {
  const Tensor x = parameter({1, 2});
  backward(ops::sum(ops::mul(x, x)), 0.25f);
  CHECK(gradient_values(x) == Floats{0.5f, 1});
  backward(ops::sum(ops::mul(x, x)), 0);
  CHECK(gradient_values(x) == Floats{0, 0});
}

TEST_CASE("each backward starts a new gradient, in new memory") {
  const Tensor x = parameter({3});
  backward(ops::sum(ops::scale(x, 2)));
  const Tensor first = x.leaf()->gradient;
  backward(ops::sum(ops::scale(x, 7)));
  CHECK(gradient_values(x) == Floats{7});
  CHECK(first.item() == 2);
}

TEST_CASE("an output that is not used gets no gradient") {
  const Tensor x = parameter({1, 1});
  std::vector<bool> seen;
  SECTION("the second is not used") {
    backward(ops::sum(two_and_three_times(x, seen)[0]));
    CHECK(seen == std::vector<bool>{true, false});
    CHECK(gradient_values(x) == Floats{2, 2});
  }
  SECTION("the first is not used") {
    backward(ops::sum(two_and_three_times(x, seen)[1]));
    CHECK(seen == std::vector<bool>{false, true});
    CHECK(gradient_values(x) == Floats{3, 3});
  }
  SECTION("both are used") {
    const auto both = two_and_three_times(x, seen);
    backward(ops::sum(ops::add(both[0], both[1])));
    CHECK(seen == std::vector<bool>{true, true});
    CHECK(gradient_values(x) == Floats{5, 5});
  }
}

TEST_CASE("backward skips a node whose output gets no gradient, and the nodes behind it") {
  const Tensor x = parameter({1});
  const Tensor y = parameter({1});
  y.leaf()->gradient = Tensor::full({1}, 99);
  int completed = 0;
  y.leaf()->gradient_complete = [&completed] { ++completed; };
  const Tensor h = ops::scale(y, 2);
  // The closure of z computes no gradient for z's second input, h.
  const Tensor z = record("first_only", x.detach(), {x, h},
                          [](const Tensor& dy, InputGradients& grads) { grads.pass(0, dy); });
  backward(ops::sum(z));
  CHECK(gradient_values(x) == Floats{1});
  CHECK_FALSE(y.leaf()->gradient.defined());
  CHECK(completed == 0);
}

TEST_CASE("only operations that depend on a parameter are recorded") {
  const Tensor constant = Tensor::full({2}, 1);
  CHECK_FALSE(ops::scale(constant, 2).requires_grad());
  const Tensor x = parameter({1, 2});
  bool wanted_constant = true;
  const Tensor y = record("mixed", x.detach(), {x, constant, Tensor()},
                          [&](const Tensor& dy, InputGradients& grads) {
                            wanted_constant = grads.wanted(1) || grads.wanted(2);
                            CHECK_THROWS_WITH(grads.destination(1),
                                              ContainsSubstring("mixed: the gradient of input 1"));
                            grads.pass(0, dy);
                          });
  backward(ops::sum(y));
  CHECK_FALSE(wanted_constant);
  CHECK(gradient_values(x) == Floats{1, 1});
}

TEST_CASE("NoGrad records nothing while it lives") {
  const Tensor x = parameter({1});
  {
    const NoGrad outer;
    CHECK_FALSE(grad_enabled());
    { const NoGrad inner; }
    CHECK_FALSE(grad_enabled());
    CHECK_FALSE(ops::scale(x, 2).requires_grad());
  }
  CHECK(grad_enabled());
  CHECK(ops::scale(x, 2).requires_grad());
  bool inside = true;
  const Tensor y = record("asks", x.detach(), {x}, [&](const Tensor& dy, InputGradients& grads) {
    inside = grad_enabled();
    grads.pass(0, dy);
  });
  backward(ops::sum(y));
  CHECK_FALSE(inside);
  CHECK(grad_enabled());
}

TEST_CASE("a loss that is a parameter itself has the given factor as its gradient") {
  const Tensor x = parameter({5});
  backward(x, 3);
  CHECK(x.leaf()->gradient.values<float>()[0] == 3);
  x.leaf()->trainable = false;
  CHECK_THROWS_WITH(backward(x), ContainsSubstring("no trained parameter"));
}

TEST_CASE("a loss of several elements, or one without history, is an error") {
  const Tensor x = parameter({1, 2});
  CHECK_THROWS_WITH(backward(ops::scale(x, 2)),
                    ContainsSubstring("the loss has shape [2], expected one element"));
  CHECK_THROWS_WITH(backward(Tensor::full({}, 1)), ContainsSubstring("the loss has no history"));
  CHECK_THROWS_AS(backward(Tensor()), Error);
  Tensor unrecorded;
  {
    const NoGrad no_grad;
    unrecorded = ops::sum(x);
  }
  CHECK_THROWS_WITH(backward(unrecorded), ContainsSubstring("gradients are off"));
}

TEST_CASE("a second backward over a freed graph is an error, and changes nothing") {
  const Tensor x = parameter({1, 2});
  int used = 0;
  x.leaf()->about_to_be_used = [&used] { ++used; };
  const Tensor h = ops::mul(x, x);
  const Tensor loss = ops::sum(h);
  backward(loss);
  used = 0;
  const std::string message = "was already used by an earlier backward";
  CHECK_THROWS_WITH(backward(loss), ContainsSubstring("'sum' " + message));
  // Before backward computes any gradient, it looks for nodes that an earlier backward has used. It
  // must find h's node, although the operations after h are new.
  const Tensor other = ops::sum(ops::mul(ops::scale(x, 3), h));
  used = 0;
  CHECK_THROWS_WITH(backward(other), ContainsSubstring("'mul' " + message));
  CHECK(used == 0);
  CHECK(gradient_values(x) == Floats{2, 4});
}

TEST_CASE("autograd still works after a closure has thrown") {
  const Tensor x = parameter({1});
  const Tensor bad = record("bad", x.detach(), {x},
                            [](const Tensor&, InputGradients&) { fail("bad: as it must"); });
  CHECK_THROWS_WITH(backward(ops::sum(ops::add(ops::scale(x, 2), bad))),
                    ContainsSubstring("bad: as it must"));
  CHECK(grad_enabled());
  backward(ops::sum(ops::scale(x, 2)));
  CHECK(gradient_values(x) == Floats{2});
}

TEST_CASE("a passed gradient is not changed while other tensors share its memory") {
  const Tensor a = parameter({1});
  const Tensor b = parameter({1});
  SECTION("one gradient for two inputs, one of which has another use") {
    const Tensor left = ops::scale(a, 2);
    const Tensor right = ops::scale(b, 3);
    const Tensor y = ops::add(left, right);                 // passes dy to left and right
    backward(ops::sum(ops::add(y, ops::scale(left, 10))));  // adds 10 to left's gradient
    CHECK(gradient_values(a) == Floats{22});
    CHECK(gradient_values(b) == Floats{3});
  }
  SECTION("the other order of uses") {
    const Tensor left = ops::scale(a, 2);
    const Tensor right = ops::scale(b, 3);
    const Tensor more = ops::scale(left, 10);
    backward(ops::sum(ops::add(more, ops::add(left, right))));
    CHECK(gradient_values(a) == Floats{22});
    CHECK(gradient_values(b) == Floats{3});
  }
  SECTION("through a view") {
    const Tensor left = ops::scale(a, 2);
    const Tensor right = ops::scale(b, 3);
    const Tensor y = ops::add(ops::reshape(left, {1, 1}), ops::reshape(right, {1, 1}));
    backward(ops::sum(ops::add(ops::reshape(y, {1}), passed(passed(left)))));
    CHECK(gradient_values(a) == Floats{4});
    CHECK(gradient_values(b) == Floats{3});
  }
  SECTION("the closure's own tensor") {
    const Tensor own = Tensor::full({1}, 5);
    const Tensor h = ops::scale(a, 1);
    const Tensor y = record("own", h.detach(), {h},
                            [own](const Tensor&, InputGradients& grads) { grads.pass(0, own); });
    backward(ops::sum(ops::add(y, h)));
    CHECK(gradient_values(a) == Floats{6});
    CHECK(own.item() == 5);
  }
}

TEST_CASE("a passed gradient must have the input's shape") {
  const Tensor x = parameter({1, 2});
  const Tensor y = record("wrong", x.detach(), {x}, [](const Tensor&, InputGradients& grads) {
    grads.pass(0, Tensor::zeros({3}));
  });
  CHECK_THROWS_WITH(
      backward(ops::sum(y)),
      ContainsSubstring("wrong: the gradient of input 0 has shape [3], expected [2]"));
}

TEST_CASE("very long graphs need no recursion") {
  constexpr int length = 200000;
  const Tensor x = parameter({1});
  const auto chain = [&x] {
    Tensor y = ops::scale(x, 1);
    // Every node is used twice by the next node. So the release of the graph visits each node
    // twice.
    for (int i = 0; i < length; ++i) {
      const Tensor before = y;
      y = record("link", before.detach(), {before, before},
                 [](const Tensor& dy, InputGradients& grads) { grads.pass(0, dy); });
    }
    return ops::sum(y);
  };
  SECTION("backward") {
    backward(chain());
    CHECK(gradient_values(x) == Floats{1});
  }
  SECTION("release without backward") { chain(); }
  SECTION("release after backward") {
    const Tensor loss = chain();
    backward(loss);
    CHECK(gradient_values(x) == Floats{1});
  }
}

TEST_CASE("a tensor that saved() returns has no history, unless it is a parameter") {
  const Tensor x = parameter({1});
  CHECK(saved(x).leaf() == x.leaf());
  const Tensor h = ops::scale(x, 2);
  CHECK(h.requires_grad());
  CHECK_FALSE(saved(h).requires_grad());
  CHECK(saved(h).raw() == h.raw());
  CHECK_FALSE(saved(Tensor()).defined());
}

TEST_CASE("outputs that can be recomputed are not kept, and gradients have the same bits") {
  const auto weights = [](uint64_t seed) { return as_parameter(random_tensor({5, 5}, seed)); };
  const Tensor x = as_parameter(random_tensor({3, 5}, 1));
  const Tensor scale = as_parameter(random_tensor({5}, 2));
  const Tensor shift = as_parameter(random_tensor({5}, 3));
  const Tensor up = weights(4);
  const Tensor down = weights(5);
  const auto kept_bytes = [&](bool again) {
    const int64_t before = memory_ledger().current(Category::activations);
    // A reshaped tensor cannot be recomputed, so operations that need the tensor keep it.
    const auto whole = [again](const Tensor& t) {
      return again ? t : ops::reshape(ops::reshape(t, {15}), {3, 5});
    };
    Tensor h = whole(ops::layer_norm(x, scale, shift));
    h = whole(ops::linear(h, up, {}, {.activation = Activation::gelu}));
    const Tensor loss = ops::sum(ops::linear(h, down, {}));
    h = {};
    const int64_t held = memory_ledger().current(Category::activations) - before;
    backward(loss);
    return held;
  };
  const int64_t whole = kept_bytes(false);
  std::vector<Tensor> expected;
  for (const Tensor& p : {x, scale, shift, up, down}) expected.push_back(p.leaf()->gradient);
  const int64_t again = kept_bytes(true);
  CHECK(whole - again == 2 * 3 * 5 * 4);  // the outputs of the norm and of the activation
  size_t i = 0;
  for (const Tensor& p : {x, scale, shift, up, down}) {
    CHECK(same_bits(p.leaf()->gradient, expected[i++]));
  }
}

TEST_CASE("an observer sees every output, recorded or not") {
  const Tensor x = parameter({1, 2});
  std::vector<std::string> names;
  std::vector<float> firsts;
  size_t most_inputs = 0;
  observe_outputs([&](const char* name, const Tensor& output, std::span<const Tensor> inputs) {
    names.emplace_back(name);
    firsts.push_back(output.values<float>()[0]);
    most_inputs = std::max(most_inputs, inputs.size());
  });
  {
    const NoGrad no_grad;
    ops::scale(x, 3);
  }
  const Tensor loss = ops::sum(ops::add(x, x));
  observe_outputs(nullptr);
  ops::scale(x, 4);
  CHECK(names == std::vector<std::string>{"scale", "add", "sum"});
  CHECK(firsts == Floats{3, 2, 6});
  CHECK(most_inputs == 2);

  // An observer may remove itself, for example when it has seen the first bad value.
  int calls = 0;
  observe_outputs([&calls](const char*, const Tensor&, std::span<const Tensor>) {
    observe_outputs(nullptr);
    ++calls;
  });
  ops::scale(ops::scale(x, 2), 2);
  CHECK(calls == 1);
}
