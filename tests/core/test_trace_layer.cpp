// Tests the spans of layers, in the forward and in backward.
#include "core/trace_layer.h"

#include <string>
#include <vector>

#include "core/autograd.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/tensors.h"

using namespace tessera;
using trace::Event;

namespace {

// Runs `body` with tracing, and returns the recorded spans as "outer(inner inner) ...". Spans are
// recorded when they end. Sorting the spans by begin and length shows their nesting.
template <class Body>
std::string nesting(Body&& body) {
  trace::take_events();
  trace::enable(true);
  body();
  trace::enable(false);
  std::vector<Event> events = trace::take_events();
  std::ranges::stable_sort(events, [](const Event& a, const Event& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  std::string text;
  std::vector<int64_t> open;
  for (const Event& event : events) {
    while (!open.empty() && event.begin_ns >= open.back()) {
      text += ")";
      open.pop_back();
    }
    text += (text.empty() || text.back() == '(' ? "" : " ") + event.name + "(";
    open.push_back(event.end_ns);
  }
  text += std::string(open.size(), ')');
  for (size_t at; (at = text.find("()")) != std::string::npos;) text.erase(at, 2);
  return text;
}

Tensor layer(const std::string& name, const Tensor& x) {
  const trace::LayerScope scope(name);
  return ops::scale(x, 2.0f);
}

}  // namespace

TEST_CASE("a layer's forward and backward are spans that hold its operations") {
  const std::string outer = "block";
  const std::string first = "attn";
  const std::string second = "mlp";
  Tensor loss;
  CHECK(nesting([&] {
          const Tensor x = test::leaf(Tensor::from<float>({2}, {1, 2}));
          Tensor y;
          {
            const trace::LayerScope scope(outer);
            y = layer(second, layer(first, x));
          }
          loss = ops::sum(ops::gelu(y), {0});
        }) == "block(attn(scale) mlp(scale)) gelu sum");
  CHECK(nesting([&] { backward(loss); }) == "backward(sum gelu block(mlp(scale) attn(scale)))");
}

TEST_CASE("layers have no span without tracing, and a whole model never has one") {
  const std::string name = "layer";
  const std::string model;
  {
    const trace::LayerScope scope(name);
    CHECK(trace::current_layer() == nullptr);
  }
  CHECK(nesting([&] {
          const trace::LayerScope scope(model);
          CHECK(trace::current_layer() == nullptr);
          const trace::LayerScope inner(name);
          REQUIRE(trace::current_layer() != nullptr);
          CHECK(trace::current_layer()->name == "layer");
          CHECK(trace::current_layer()->depth == 1);
        }) == "layer");
  CHECK(trace::current_layer() == nullptr);
}

TEST_CASE("a graph that was made while tracing may outlive its model") {
  Tensor loss;
  nesting([&] {
    const std::string passing = "layer of a model that is gone";
    loss = ops::sum(layer(passing, test::leaf(Tensor::from<float>({2}, {1, 2}))), {0});
  });
  CHECK(nesting([&] { backward(loss); }) == "backward(sum layer of a model that is gone(scale))");
}
