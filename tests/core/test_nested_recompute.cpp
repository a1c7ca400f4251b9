// Tests that segments of recompute() may contain segments whose inputs no operation reads.
#include <string>
#include <utility>
#include <vector>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/recompute.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"

using namespace tessera;
using namespace tessera::test;

namespace {

using Tensors = std::vector<Tensor>;

Tensors run(bool again, const char* name, const Tensors& inputs, const Segment& segment) {
  return again ? recompute(name, inputs, segment) : segment(inputs);
}

/// Reads only in[0].
Tensors hand_on(const Tensors& in) { return {ops::gelu(in[0]), in[1]}; }

/// Returns gelu(gelu(x)) and p. If `again`, computed in three nested segments, all of which have p
/// as an input. No operation in the segments reads p.
Tensors nested(bool again, const Tensor& x, const Tensor& p) {
  const Segment middle = [again](const Tensors& in) {
    const Tensors out = run(again, "inner", {in[0], in[1]}, hand_on);
    return Tensors{ops::gelu(out[0]), out[1]};
  };
  return run(again, "outer", {x}, [again, middle, p](const Tensors& in) {
    return run(again, "middle", {in[0], p}, middle);
  });
}

}  // namespace

TEST_CASE("a nested segment may have a parameter as an input that no operation reads") {
  const Tensor x = as_parameter(random_tensor({4}, 1));
  const Tensor p = as_parameter(random_tensor({4}, 2));
  const Tensor frozen = as_parameter(random_tensor({4}, 3));
  frozen.leaf()->trainable = false;
  int complete = 0;
  p.leaf()->gradient_complete = [&complete] { ++complete; };
  const bool again = GENERATE(false, true);
  CAPTURE(again);

  SECTION("p is used nowhere, and gets no gradient") {
    const Tensor y = nested(again, ops::scale(x, 2), p)[0];
    backward(ops::sum(y));
    CHECK(x.leaf()->gradient.defined());
    CHECK_FALSE(p.leaf()->gradient.defined());
    CHECK(complete == 0);
  }
  SECTION("p is used before, after and as a result of the segments") {
    const Tensor h = ops::mul(x, p);
    const Tensors out = nested(again, h, p);
    CHECK(out[1].same(p));
    backward(ops::sum(ops::mul(ops::mul(out[0], out[1]), p)));
    CHECK(complete == 1);
    // Without recomputation.
    const Tensor gradient = std::exchange(p.leaf()->gradient, {});
    const Tensor of_x = std::exchange(x.leaf()->gradient, {});
    const Tensor plain = ops::gelu(ops::gelu(ops::mul(x, p)));
    backward(ops::sum(ops::mul(ops::mul(plain, p), p)));
    CHECK(same_bits(gradient, p.leaf()->gradient));
    CHECK(same_bits(of_x, x.leaf()->gradient));
  }
  SECTION("a frozen parameter") {
    backward(ops::sum(nested(again, ops::scale(x, 2), frozen)[0]));
    CHECK(x.leaf()->gradient.defined());
    CHECK_FALSE(frozen.leaf()->gradient.defined());
  }
}

TEST_CASE("a nested segment may return a tensor with history that its container captures") {
  const Tensor x = as_parameter(random_tensor({4}, 1));
  const Tensor h = ops::scale(as_parameter(random_tensor({4}, 2)), 2);
  const Tensors out = recompute("outer", {ops::scale(x, 3)}, [&h](const Tensors& in) {
    return recompute("inner", {in[0], h}, hand_on);
  });
  CHECK(out[1].same(h));
  backward(ops::sum(out[0]));
  CHECK(x.leaf()->gradient.defined());
}
