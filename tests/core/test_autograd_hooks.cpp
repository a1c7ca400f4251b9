// Tests which hooks of a parameter are called in forward and backward, and where gradients go.
#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "core/autograd.h"
#include "core/image_ops.h"
#include "core/ops.h"
#include "core/ops/add.h"
#include "core/ops/copy.h"
#include "core/ops/fill.h"
#include "core/table_ops.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/reference.h"

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Log = std::vector<std::string>;

/// A parameter with a gradient buffer. Its hooks write a log.
struct Watched {
  Watched(const std::string& name, Log& log, const Shape& shape, float value)
      : tensor(as_parameter(Tensor::empty(shape))), buffer(Tensor::full(shape, -1000)) {
    for (float& element : tensor.values<float>()) element = value;
    Leaf& leaf = *tensor.leaf();
    leaf.name = name;
    leaf.about_to_be_used = [&log, name] { log.push_back(name + " use"); };
    leaf.no_longer_used = [&log, name] { log.push_back(name + " done"); };
    leaf.gradient_buffer = [this, &log, name] {
      log.push_back(name + " buffer");
      return buffer;
    };
    leaf.gradient_complete = [this, &log, name] {
      log.push_back(name + " complete");
      at_completion = tensor.leaf()->gradient.values<float>()[0];
    };
  }

  Tensor tensor;
  Tensor buffer;
  float at_completion = 0;
};

int64_t count(const Log& log, const std::string& entry) {
  return std::count(log.begin(), log.end(), entry);
}

}  // namespace

TEST_CASE("a parameter's hooks see each use, in backward only if its value is read") {
  Log log;
  Watched w("w", log, {2, 2}, 0.5f);
  const Tensor x = as_parameter(Tensor::full({2, 2}, 3));
  const Tensor y = ops::mul(x, w.tensor);
  CHECK(log == Log{"w use", "w done"});
  const Tensor loss = ops::sum(y);
  log.clear();
  backward(loss);
  // "complete" comes after "done", so the parameter may be freed before its gradient is sent.
  CHECK(log == Log{"w use", "w buffer", "w done", "w complete"});
  CHECK(w.at_completion == 3);
  CHECK(w.tensor.leaf()->gradient.raw() == w.buffer.raw());
  for (const float value : w.buffer.values<float>()) CHECK(value == 3);

  // Backward of embedding needs the shape of the table, not its values, so it announces no use.
  log.clear();
  backward(ops::sum(ops::embedding(Tensor::from<int32_t>({1, 1}, {1}), w.tensor)));
  CHECK(log == Log{"w use", "w done", "w buffer", "w complete"});
}

TEST_CASE("a shared parameter's gradient is complete once, after all contributions") {
  Log log;
  Watched table("table", log, {4, 2}, 1);
  Watched other("other", log, {2, 2}, 1);
  const Tensor tokens = Tensor::from<int32_t>({1, 3}, {0, 1, 1});
  const Tensor targets = Tensor::from<int32_t>({1, 3}, {1, 1, 2});
  Values expected;
  {
    // The reference: no hooks, and a separate table for each use.
    const Tensor first = as_parameter(table.tensor);
    const Tensor second = as_parameter(table.tensor);
    const Tensor weight = as_parameter(other.tensor);
    const Tensor h = ops::linear(ops::embedding(tokens, first), weight, {});
    backward(ops::linear_cross_entropy(h, second, targets));
    expected = values_of(first.leaf()->gradient);
    const Values more = values_of(second.leaf()->gradient);
    for (size_t i = 0; i < more.size(); ++i) expected[i] += more[i];
  }
  const Tensor h = ops::linear(ops::embedding(tokens, table.tensor), other.tensor, {});
  backward(ops::linear_cross_entropy(h, table.tensor, targets));

  CHECK(count(log, "table use") == 3);  // the embedding's backward does not read the table
  CHECK(count(log, "table done") == 3);
  CHECK(count(log, "table buffer") == 1);
  CHECK(count(log, "table complete") == 1);
  CHECK(log.back() == "table complete");
  CHECK(count(log, "other complete") == 1);
  CHECK(relative_error(table.buffer, expected) < 1e-6);
  CHECK(table.at_completion == table.buffer.values<float>()[0]);
}

TEST_CASE("the first contribution overwrites a gradient's buffer, and later ones add to it") {
  Log log;
  Watched w("w", log, {2}, 3);
  const auto by_destination = [](const Tensor& x) {
    return record("destination", x.detach(), {x}, [](const Tensor& dy, InputGradients& grads) {
      kernels::copy(test_context(), grads.destination(0), dy);
    });
  };
  const auto by_pass = [](const Tensor& x) {
    return record("pass", x.detach(), {x},
                  [](const Tensor& dy, InputGradients& grads) { grads.pass(0, dy); });
  };
  const auto by_sum = [](const Tensor& x) {
    return record("sum", x.detach(), {x}, [](const Tensor& dy, InputGradients& grads) {
      const auto [gradient, accumulate] = grads.accumulating_destination(0);
      const Context context = test_context();
      if (accumulate) {
        kernels::add(context, gradient, gradient, dy);
      } else {
        kernels::copy(context, gradient, dy);
      }
    });
  };
  const std::vector<std::function<Tensor(const Tensor&)>> ways{by_destination, by_pass, by_sum};
  for (const auto& first : ways) {
    for (const auto& second : ways) {
      for (const auto& third : ways) {
        log.clear();
        kernels::fill(test_context(), w.buffer, -1000);
        // Backward reaches the third use first.
        const Tensor a = first(w.tensor);
        const Tensor b = ops::scale(second(w.tensor), 10);
        const Tensor c = ops::scale(third(w.tensor), 100);
        backward(ops::sum(ops::add(ops::add(a, b), c)));
        CHECK(w.buffer.values<float>()[0] == 111);
        CHECK(w.buffer.values<float>()[1] == 111);
        CHECK(w.at_completion == 111);
        CHECK(count(log, "w buffer") == 1);
        CHECK(count(log, "w complete") == 1);
      }
    }
  }
}

TEST_CASE("a parameter used twice in one operation is complete once") {
  Log log;
  Watched w("w", log, {2}, 3);
  backward(ops::sum(ops::mul(w.tensor, w.tensor)));
  CHECK(w.at_completion == 6);
  CHECK(count(log, "w buffer") == 1);
  CHECK(count(log, "w complete") == 1);
  CHECK(count(log, "w use") == count(log, "w done"));
}

TEST_CASE("a use without a gradient does not delay completion") {
  Log log;
  Watched w("w", log, {1}, 2);
  const Tensor dropped = ops::scale(w.tensor, 5);
  const Tensor z = record("first_only", w.tensor.detach(), {w.tensor, dropped},
                          [](const Tensor& dy, InputGradients& grads) { grads.pass(0, dy); });
  backward(ops::sum(z));
  CHECK(w.at_completion == 1);
  CHECK(count(log, "w complete") == 1);
  // A use outside of the loss's graph does not delay completion.
  log.clear();
  const Tensor unused = ops::scale(w.tensor, 7);
  backward(ops::sum(ops::scale(w.tensor, 3)));
  CHECK(w.at_completion == 3);
  CHECK(count(log, "w complete") == 1);
}

TEST_CASE("gradients are complete in the order of backward") {
  Log log;
  Watched a("a", log, {1}, 2);
  Watched b("b", log, {1}, 3);
  Watched c("c", log, {1}, 4);
  const Tensor h = ops::mul(ops::scale(a.tensor, 1), b.tensor);
  const Tensor loss = ops::sum(ops::mul(h, c.tensor));
  log.clear();
  backward(loss);
  Log completed;
  for (const auto& entry : log) {
    if (entry.find("complete") != std::string::npos) completed.push_back(entry);
  }
  CHECK(completed == Log{"c complete", "b complete", "a complete"});
}

TEST_CASE("a gradient buffer must have the parameter's shape") {
  Log log;
  Watched w("w", log, {2}, 1);
  w.buffer = Tensor::zeros({3});
  CHECK_THROWS_WITH(backward(ops::sum(w.tensor)),
                    ContainsSubstring("parameter 'w' has shape [3], expected [2]"));
}

TEST_CASE("an operation that fails still ends the use of its parameters") {
  Log log;
  Watched w("w", log, {2}, 1);
  Watched bad("bad", log, {2}, 1);
  try {
    const Tensor undefined;
    const InUse in_use({&w.tensor, &undefined, nullptr});
    fail("as it must");
  } catch (const Error&) {
  }
  CHECK(log == Log{"w use", "w done"});
  // If a hook throws, for instance because a gather fails, the other parameter's use still ends.
  log.clear();
  bad.tensor.leaf()->about_to_be_used = [] { fail("as it must"); };
  CHECK_THROWS_AS(ops::mul(w.tensor, bad.tensor), Error);
  CHECK(log == Log{"w use", "w done"});
}

TEST_CASE("an operation reads its parameters in order, and completes them in reverse") {
  Log log;
  Watched a("a", log, {2, 2}, 2), b("b", log, {2, 2}, 3);
  const Tensor loss = ops::sum(ops::mul(a.tensor, b.tensor));
  CHECK(log == Log{"a use", "b use", "a done", "b done"});
  log.clear();
  backward(loss);
  Log completed;
  std::copy_if(log.begin(), log.end(), std::back_inserter(completed),
               [](const std::string& entry) { return entry.ends_with(" complete"); });
  CHECK(completed == Log{"b complete", "a complete"});
}

TEST_CASE("operands on two devices are refused") {
  if (on_cpu()) return;
  const Tensor here = Tensor::zeros({2, 2}), host = Tensor::empty({2, 2}, DType::f32, Device{});
  const Tensor rows = Tensor::empty({2}, DType::i32, Device{});
  std::ranges::fill(rows.values<int32_t>(), 0);
  CHECK_THROWS_WITH(ops::mul(here, host),
                    ContainsSubstring("operands of shapes [2, 2] and [2, 2] are on cuda:0 and cpu, "
                                      "expected one device"));
  const auto refused = ContainsSubstring("cuda:0 and cpu, expected one device");
  CHECK_THROWS_WITH(ops::concat({here, host}, 0), refused);
  CHECK_THROWS_WITH(ops::embedding(rows, here), refused);
  CHECK_THROWS_WITH(ops::index_select(here, 0, rows), refused);
  CHECK_THROWS_WITH(ops::cross_entropy(here, rows), refused);
  CHECK_THROWS_WITH(ops::linear_cross_entropy(here, here, rows), refused);
  CHECK_THROWS_WITH(ops::smoothed_cross_entropy(here, rows, 0.1f), refused);
  CHECK_THROWS_WITH(ops::cross_entropy(here, rows, {.class_weights = {}, .ignored = -1}), refused);
  const Tensor square = Tensor::empty({2, 2}, DType::i32, Device{});
  std::ranges::fill(square.values<int32_t>(), 0);
  CHECK_THROWS_WITH(ops::gather(here, 0, square), refused);
  CHECK_THROWS_WITH(ops::scatter_add(here, 0, square, here), refused);
  CHECK_THROWS_WITH(ops::rotary(Tensor::zeros({1, 2, 1, 2}), rows), refused);
  const Tensor offsets = Tensor::empty({3}, DType::i32, Device{});
  std::ranges::copy(std::array{0, 1, 2}, offsets.data<int32_t>());
  CHECK_THROWS_WITH(ops::embedding_bag(rows, offsets, here), refused);
  CHECK_THROWS_WITH(ops::row_products({here, rows}, {here, square}), refused);
  const Tensor weight = Tensor::full({2}, 1), mean = Tensor::empty({2}, DType::f32, Device{});
  CHECK_THROWS_WITH(ops::batch_norm_with(mean, mean, Tensor::zeros({3, 2}), weight, weight),
                    refused);
}

TEST_CASE("a frozen parameter gets no gradient, but its hooks see each use") {
  Log log;
  Watched w("w", log, {2, 2}, 0.5f);
  Watched frozen("frozen", log, {2, 2}, 2);
  frozen.tensor.leaf()->trainable = false;
  CHECK_FALSE(frozen.tensor.requires_grad());
  const Tensor loss = ops::sum(ops::mul(ops::scale(w.tensor, 2), frozen.tensor));
  CHECK(log == Log{"w use", "w done", "frozen use", "frozen done"});
  log.clear();
  backward(loss);
  CHECK(log == Log{"frozen use", "frozen done", "w buffer", "w complete"});
  CHECK(w.at_completion == 4);
  CHECK_FALSE(frozen.tensor.leaf()->gradient.defined());

  // If all parameters are frozen, no graph is recorded.
  log.clear();
  const Tensor y = ops::scale(ops::mul(frozen.tensor, frozen.tensor), 2);
  CHECK_FALSE(y.requires_grad());
  CHECK(log == Log{"frozen use", "frozen use", "frozen done", "frozen done"});
  CHECK_THROWS_WITH(backward(ops::sum(y)), ContainsSubstring("the loss has no history"));

  frozen.tensor.leaf()->trainable = true;
  backward(ops::sum(ops::mul(w.tensor, frozen.tensor)));
  CHECK(frozen.at_completion == 0.5f);
}
