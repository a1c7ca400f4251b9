// Tests that a launched CUDA graph gives the same bits as the captured code, and that code that
// cannot be replayed is refused.
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "core/ops.h"
#include "core/ops/add.h"
#include "core/ops/copy.h"
#include "core/ops/fill.h"
#include "core/ops/scale.h"
#include "core/recompute.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::ContainsSubstring;

#define NEEDS_CUDA() \
  if (on_cpu()) TESSERA_SKIP("a graph is captured on CUDA")

namespace {

constexpr int64_t batch = 2, length = 5, channels = 16, vocabulary = 11;

Tensor tokens_of(uint64_t seed) {
  std::vector<int32_t> values;
  for (uint32_t i = 0; i < batch * length; ++i) {
    values.push_back(static_cast<int32_t>(philox({i, 0, 0, 0}, philox_key(seed))[0] % vocabulary));
  }
  return Tensor::from({batch, length}, values);
}

/// A transformer with one block. Its parameters have gradient buffers, as an optimizer provides
/// them. All inputs and outputs of a step live as long as this object, so a graph of the step may
/// be launched again.
class Model {
 public:
  explicit Model(DType dtype) : dtype_(dtype) {
    const auto add = [&](const Shape& shape) {
      const Tensor weight = rounded_to(dtype_, random_tensor(shape, parameters_.size(), -0.5, 0.5));
      const Tensor gradient = Tensor::empty(shape, dtype_, default_device(), Category::gradients);
      parameters_.push_back(leaf(weight));
      parameters_.back().leaf()->gradient_buffer = [gradient] { return gradient; };
      gradients_.push_back(gradient);
    };
    for (const Shape& shape : {Shape{vocabulary, channels}, Shape{length, channels},
                               Shape{channels}, Shape{channels}, Shape{3 * channels, channels},
                               Shape{3 * channels}, Shape{channels}, Shape{channels},
                               Shape{4 * channels, channels}, Shape{4 * channels},
                               Shape{channels, 4 * channels}}) {
      add(shape);
    }
  }

  void set_input(uint64_t seed) {
    tokens_.copy_from(tokens_of(seed));
    targets_.copy_from(tokens_of(seed + 1));
  }

  void forward_and_backward() {
    const auto& p = parameters_;
    const Tensor x = ops::dropout(ops::embedding(tokens_, p[0], p[1]), 0.2f, 1);
    const auto block = [&p](const std::vector<Tensor>& in) -> std::vector<Tensor> {
      const Tensor qkv = ops::linear(ops::layer_norm(in[0], p[2], p[3]), p[4], p[5]);
      const Tensor attended = ops::dropout(ops::causal_attention(qkv, 2), 0.2f, 2);
      const auto [sum, normalized] = ops::residual_layer_norm(attended, in[0], p[6], p[7]);
      const Tensor inner =
          ops::linear(normalized, p[8], p[9], {.activation = Activation::gelu});
      return {ops::add(sum, ops::linear(inner, p[10], {}))};
    };
    const Tensor loss =
        ops::linear_cross_entropy(recompute("block", {x}, block)[0], p[0], targets_);
    backward(loss, 0.5f);
    kernels::copy(test_context(), loss_, loss);
  }

  /// Returns copies of the loss and of all gradients.
  std::vector<std::vector<double>> results() const {
    std::vector<std::vector<double>> all{doubles(loss_)};
    for (const Tensor& gradient : gradients_) all.push_back(doubles(gradient));
    return all;
  }

 private:
  DType dtype_;
  std::vector<Tensor> parameters_, gradients_;
  Tensor tokens_ = tokens_of(0);
  Tensor targets_ = tokens_of(1);
  Tensor loss_ = Tensor::zeros({});
};

/// Sets the dropout state, and restores the previous state in the destructor.
class State {
 public:
  explicit State(DropoutState state) : before_(std::exchange(dropout_state(), state)) {}
  ~State() { dropout_state() = before_; }

 private:
  DropoutState before_;
};

std::function<void()> refused(const std::function<void()>& body) {
  return [body] { const cuda::Graph graph(0, body); };
}

}  // namespace

TEST_CASE("a graph's launch has the bits of the captured step", "[graph]") {
  NEEDS_CUDA();
  const State restored({.step = 0});
  Model model(GENERATE(from_range(float_dtypes())));
  const auto step = [&] { model.forward_and_backward(); };
  const auto prepare = [&](uint64_t input, DropoutState state) {
    model.set_input(input);
    dropout_state() = state;
  };
  std::vector<std::pair<uint64_t, DropoutState>> steps;
  for (const int64_t i : {0, 1, 2, 3}) {
    steps.push_back({10 * static_cast<uint64_t>(i),
                     {.seed = 7 + static_cast<uint64_t>(i / 2), .step = i, .first_sample = 4 * i}});
  }
  std::vector<std::vector<std::vector<double>>> expected;
  for (const auto& [input, state] : steps) {
    prepare(input, state);
    step();
    expected.push_back(model.results());
  }
  REQUIRE(expected[0] != expected[1]);

  cuda::Graph graph(0, step);
  CHECK(model.results() == expected.back());  // capturing runs nothing
  for (const size_t i : {0u, 2u, 1u, 3u, 2u}) {
    prepare(steps[i].first, steps[i].second);
    graph.launch();
    CHECK(model.results() == expected[i]);
  }
  // This launch differs from the first step only in the dropout state, which must change the
  // results.
  prepare(steps[0].first, {.seed = 7, .step = 1});
  graph.launch();
  CHECK(model.results() != expected[0]);
  // Without the graph, a step uses the dropout state that is set when it runs.
  prepare(steps[2].first, steps[2].second);
  step();
  CHECK(model.results() == expected[2]);
}

TEST_CASE("the ledger counts a graph's launch like the captured step", "[graph]") {
  NEEDS_CUDA();
  const State state({.seed = 1, .step = 0});
  Model model(DType::f32);
  const auto step = [&] { model.forward_and_backward(); };
  MemoryLedger& ledger = memory_ledger();
  const auto peaks_of = [&](const std::function<void()>& run) {
    ledger.reset_peaks();
    run();
    std::vector<int64_t> peaks{ledger.peak_total()};
    for (int c = 0; c < category_count; ++c) peaks.push_back(ledger.peak(static_cast<Category>(c)));
    return peaks;
  };
  const int64_t before = ledger.current_total();
  const std::vector<int64_t> expected = peaks_of(step);
  REQUIRE(expected[0] > before);
  auto graph = std::make_unique<cuda::Graph>(0, step);
  // The graph has allocated memory for the state of dropout's random draws.
  const int64_t own = static_cast<int64_t>(sizeof(DropoutDraws));
  CHECK(ledger.current_total() == before + own);
  std::vector<int64_t> with_own = expected;
  with_own[0] += own;
  with_own[1 + static_cast<size_t>(Category::workspace)] += own;
  CHECK(peaks_of([&] { graph->launch(); }) == with_own);
  CHECK(ledger.current_total() == before + own);

  const Tensor more = Tensor::empty({1000});
  with_own[0] += more.bytes();
  with_own[1 + static_cast<size_t>(Category::activations)] += more.bytes();
  CHECK(peaks_of([&] { graph->launch(); }) == with_own);
  graph.reset();
  CHECK(ledger.current_total() == before + more.bytes());
}

TEST_CASE("calls that a graph cannot repeat are refused during its capture", "[graph]") {
  NEEDS_CUDA();
  const Tensor x = Tensor::full({4}, 2);
  const Tensor one = Tensor::full({1}, 2);
  const Tensor y = Tensor::zeros({4});
  const Tensor host = Tensor::empty({4}, DType::f32, Device{});
  const auto refuses = [](const char* why, const std::function<void()>& body) {
    CHECK_THROWS_WITH(refused(body)(), ContainsSubstring(why));
  };
  refuses("item: in the capture of a graph", [&] { (void)one.item(); });
  refuses("values: in the capture of a graph", [&] { (void)x.values<float>(); });
  refuses("copy_from: in the capture of a graph", [&] { (void)x.to_host(); });
  refuses("copy_from: in the capture of a graph", [&] { x.copy_from(host); });
  refuses("Tensor::from: in the capture of a graph", [&] { (void)Tensor::full({4}, 1); });
  refuses("synchronize: in the capture of a graph", [] { cuda::synchronize(0); });
  refuses("Event::synchronize: in the", [] { cuda::Event(0).synchronize(); });
  refuses("copy_and_wait: in the", [&] { cuda::copy_and_wait(0, y.raw(), x.raw(), 4); });
  refuses("allocate_pinned: in the", [] { (void)allocate_pinned(8, Category::communication); });
  refuses("Graph: in the capture of a graph", refused([] {}));
  {
    const int64_t without = memory_ledger().current_total();
    cuda::Graph empty(0, [] {});
    empty.launch();
    CHECK(memory_ledger().current_total() == without);
    refuses("Graph::launch: in the", [&] { empty.launch(); });
  }
  refuses("earlier error", [] { fail("an {} error", "earlier"); });

  Tensor kept;
  refuses("allocates 32 bytes of activations and does not free it",
          [&] { kept = Tensor::empty({8}); });
  Tensor freed = Tensor::empty({8});
  const int64_t before = memory_ledger().current_total();
  refuses("frees 1 blocks of memory that it has not allocated", [&] { freed = {}; });
  CHECK(memory_ledger().current_total() == before - 32);
  kept = {};
  CHECK(memory_ledger().current_total() == before - 64);

  const State state({.seed = 1, .step = 0});
  refuses("and first sample 2 in a graph whose capture began with 1, 0 and 0", [&] {
    dropout_state().first_sample = 2;
    (void)ops::dropout(x, 0.5f, 0);
  });
  cuda::Graph drops(0, [&] { kernels::copy(test_context(), y, ops::dropout(x, 0.5f, 0)); });
  {
    const cuda::StreamScope there(0, cuda::copy_stream(0));
    CHECK_THROWS_WITH(drops.launch(), ContainsSubstring("launch it on the stream of its capture"));
  }
  dropout_state().first_sample = (int64_t{1} << 32) - 2;
  CHECK_THROWS_WITH(drops.launch(), ContainsSubstring("expected samples from 0 to 2^32 - 1"));
  dropout_state() = {};
  CHECK_THROWS_WITH(drops.launch(), ContainsSubstring("no step is running on this thread"));
  dropout_state() = {.is_ambiguous = true};
  CHECK_THROWS_WITH(drops.launch(), ContainsSubstring("micro-batches of two optimizers are open"));

  // After all these failures the stream must still be usable.
  kernels::copy(test_context(), y, x);
  CHECK(same_bits(x, y));
}

TEST_CASE("other streams join a graph by events", "[graph]") {
  NEEDS_CUDA();
  static void* const other = cuda::new_stream(0);
  const Tensor x = Tensor::full({4}, 2);
  const Tensor y = Tensor::zeros({4});
  const auto scale_there = [&] {
    const cuda::StreamScope there(0, other);
    kernels::scale(test_context(), y, Tensor::empty({4}), 1);
    kernels::scale(test_context(), y, x, 3);
  };
  const auto join = [&] {
    const cuda::Event launched(0);
    const cuda::StreamScope there(0, other);
    launched.wait();
  };
  CHECK_THROWS_WITH(refused([&] { scale_there(); })(),
                    ContainsSubstring("allocate: on a stream that is not in the running capture of "
                                      "a graph"));
  CHECK_THROWS_WITH(refused([&] {
                      const cuda::StreamScope there(0, other);
                      kernels::scale(test_context(), y, x, 3);
                    })(),
                    ContainsSubstring("scale: on a stream that"));
  CHECK_THROWS_WITH(refused([&] {
                      join();
                      scale_there();
                    })(),
                    ContainsSubstring("cudaErrorStreamCaptureUnjoined"));
  const cuda::Event earlier(0);
  CHECK_THROWS_WITH(refused([&] { earlier.wait(); })(),
                    ContainsSubstring("cudaErrorStreamCaptureIsolation"));

  kernels::fill(test_context(), y, 0);
  cuda::Graph graph(0, [&] {
    join();
    scale_there();
    const auto done = [&] {
      const cuda::StreamScope there(0, other);
      return cuda::Event(0);
    }();
    done.wait();
    kernels::add(test_context(), y, y, x);
  });
  CHECK(y.data<float>()[0] == 0);
  graph.launch();
  CHECK(same_bits(y, Tensor::full({4}, 8)));
}

// Destructors call over(), and a capture may destroy objects with work from before the capture.
TEST_CASE("over() of an earlier event neither throws in a capture nor breaks it", "[graph]") {
  NEEDS_CUDA();
  const Tensor x = Tensor::full({4}, 2);
  const Tensor y = Tensor::zeros({4});
  const cuda::Event earlier(0);
  earlier.synchronize();
  bool over = false;
  cuda::Graph graph(0, [&] {
    over = earlier.over();
    CHECK_THROWS_WITH(earlier.passed(), ContainsSubstring("Event::passed: in the capture of a"));
    kernels::copy(test_context(), y, x);
  });
  CHECK(over);
  graph.launch();
  CHECK(same_bits(x, y));
}

TEST_CASE("over() of a captured event is false, and does not break the capture", "[graph]") {
  NEEDS_CUDA();
  const Tensor x = Tensor::full({4}, 2);
  const Tensor y = Tensor::zeros({4});
  std::optional<cuda::Event> captured;
  bool over = true;
  cuda::Graph graph(0, [&] {
    kernels::copy(test_context(), y, x);
    captured.emplace(0);
    over = captured->over();
  });
  CHECK_FALSE(over);
  graph.launch();
  cuda::synchronize(0);
  CHECK(same_bits(x, y));
  CHECK_FALSE(captured->over());
}

TEST_CASE("an error in a graph is thrown at the next synchronisation", "[graph]") {
  NEEDS_CUDA();
  const Tensor tokens = Tensor::from<int32_t>({1, 2}, std::vector<int32_t>{0, 1});
  const Tensor table = Tensor::full({3, 4}, 1);
  const Tensor y = Tensor::zeros({1, 2, 4});
  cuda::Graph graph(0, [&] { kernels::copy(test_context(), y, ops::embedding(tokens, table)); });
  graph.launch();
  CHECK(same_bits(y, Tensor::full({1, 2, 4}, 1)));
  tokens.data<int32_t>()[1] = 3;
  CHECK_THROWS_WITH(
      [&] {
        graph.launch();
        cuda::synchronize(0);
      }(),
      ContainsSubstring("embedding: token 3 at position 1"));
}

TEST_CASE("a graph without a device is an error", "[graph]") {
  if (cuda::device_count() > 0) TESSERA_SKIP("there is a device");
  CHECK_THROWS_WITH(refused([] {})(), ContainsSubstring(cuda::unusable()));
}
