#include "core/autograd.h"

#include <algorithm>
#include <atomic>
#include <unordered_set>
#include <utility>

#include "core/ops.h"
#include "core/ops/add.h"
#include "core/ops/copy.h"
#include "core/ops/fill.h"
#include "core/trace.h"

namespace tessera {
namespace {

thread_local bool grad_is_enabled = true;
thread_local OutputObserver output_observer;
thread_local InputCollector* input_collector = nullptr;
std::atomic<int64_t> next_sequence{0};

Node::Edge edge_to(const Tensor& input) {
  Node::Edge edge;
  if (!input.defined()) return edge;
  edge.shape = input.shape();
  edge.dtype = input.dtype();
  edge.device = input.device();
  if (input.leaf()) {
    if (input.leaf()->trainable) edge.parameter = input;
  } else {
    edge.producer = input.producer();
    edge.output_index = input.output_index();
  }
  return edge;
}

bool any_wanted(std::span<const Tensor> inputs) {
  return grad_is_enabled && std::any_of(inputs.begin(), inputs.end(), [](const Tensor& input) {
           return input.defined() && input.requires_grad();
         });
}

std::shared_ptr<Node> make_node(const char* name, std::span<const Tensor> inputs, size_t outputs) {
  auto node = std::make_shared<Node>();
  node->name = name;
  node->layer = trace::current_layer();
  node->sequence = next_sequence.fetch_add(1, std::memory_order_relaxed);
  node->inputs.reserve(inputs.size());
  for (const Tensor& input : inputs) node->inputs.push_back(edge_to(input));
  node->output_gradients.resize(outputs);
  return node;
}

// Returns the sum of two gradients. Adds in place if no other tensor shares `first`'s memory.
Tensor added(Tensor first, const Tensor& second) {
  const Context context = current_context(first.device());
  if (first.unique()) {
    kernels::add(context, first, first, second);
    return first;
  }
  Tensor result = Tensor::empty(first.shape(), first.dtype(), first.device());
  kernels::add(context, result, first, second);
  return result;
}

}  // namespace

Node::~Node() {
  // A loop, because the members' destructors would recurse once per node of a long chain.
  std::vector<std::shared_ptr<Node>> producers;
  const auto collect = [&producers](Node& node) {
    for (Edge& edge : node.inputs) {
      if (edge.producer) producers.push_back(std::move(edge.producer));
    }
  };
  collect(*this);
  while (!producers.empty()) {
    const std::shared_ptr<Node> last = std::move(producers.back());
    producers.pop_back();
    if (last.use_count() == 1) collect(*last);
  }
}

Tensor InputGradients::destination(int input) {
  const Sum sum = accumulating_destination(input);
  if (!sum.accumulate) return sum.gradient;
  // The parameter's gradient already has values: an earlier contribution, or the zeros of a
  // row-sparse table. The new contribution is first computed completely in scratch memory. Then
  // each of its elements is added to the gradient with one addition.
  Tensor& given = gradients_[static_cast<size_t>(input)];
  given =
      current_context(sum.gradient.device()).workspace(sum.gradient.shape(), sum.gradient.dtype());
  return given;
}

InputGradients::Sum InputGradients::accumulating_destination(int input) {
  const Node::Edge& edge = node_.inputs[static_cast<size_t>(input)];
  TESSERA_CHECK(edge.wanted(), "{}: the gradient of input {} is not wanted", node_.name, input);
  Tensor& given = gradients_[static_cast<size_t>(input)];
  if (!edge.parameter.defined()) {
    given = Tensor::empty(edge.shape, edge.dtype, edge.device);
    return {given, false};
  }
  Leaf& leaf = *edge.parameter.leaf();
  if (leaf.gradient.defined()) return {leaf.gradient, true};
  if (leaf.gradient_buffer) {
    leaf.gradient = leaf.gradient_buffer();
    if (leaf.look_up) return {leaf.gradient, true};  // the looked-up rows are zeros
    TESSERA_CHECK(leaf.gradient.shape() == edge.shape,
                  "{}: the gradient buffer of parameter '{}' has shape {}, expected {}", node_.name,
                  leaf.name, leaf.gradient.shape(), edge.shape);
  } else {
    leaf.gradient =
        Tensor::empty(edge.shape, edge.dtype, edge.parameter.device(), Category::gradients);
  }
  return {leaf.gradient, false};
}

void InputGradients::pass(int input, const Tensor& gradient) {
  const Node::Edge& edge = node_.inputs[static_cast<size_t>(input)];
  TESSERA_CHECK(gradient.shape() == edge.shape,
                "{}: the gradient of input {} has shape {}, expected {}", node_.name, input,
                gradient.shape(), edge.shape);
  if (edge.parameter.defined()) {
    kernels::copy(current_context(edge.device), destination(input), gradient);
  } else {
    gradients_[static_cast<size_t>(input)] = gradient;
  }
}

TableRows rows_of(const Tensor& table, const Tensor& indices, int64_t used) {
  const bool sparse = table.leaf() && table.leaf()->look_up;
  return sparse ? table.leaf()->look_up(indices, used) : TableRows{table, indices};
}

TableRows rows_of(const Tensor& table, const Tensor& indices) {
  return rows_of(table, indices, indices.elements());
}

const Tensor* read_whole(const Tensor& table) {
  return table.leaf() && table.leaf()->look_up ? nullptr : &table;
}

Tensor saved(const Tensor& x) { return x.defined() && !x.leaf() ? x.detach() : x; }

Kept::Kept(const Tensor& x) {
  if (x.defined()) recompute_ = x.recompute();
  if (!recompute_) tensor_ = saved(x);
}

Tensor record(const char* name, Tensor output, std::initializer_list<Tensor> inputs,
              Backward backward) {
  record(name, std::span(&output, 1), inputs,
         [backward = std::move(backward)](std::span<const Tensor> grads, InputGradients& to) {
           backward(grads[0], to);
         });
  return output;
}

void record(const char* name, std::span<Tensor> outputs, std::initializer_list<Tensor> inputs,
            MultiBackward backward) {
  record(name, outputs, std::span(inputs.begin(), inputs.size()), std::move(backward));
}

void record(const char* name, std::span<Tensor> outputs, std::span<const Tensor> inputs,
            MultiBackward backward) {
  if (output_observer) {
    const OutputObserver observer = output_observer;  // a copy: the observer may unset itself
    for (const Tensor& output : outputs) observer(name, output, inputs);
  }
  if (input_collector != nullptr) input_collector->add(inputs);
  if (!any_wanted(inputs)) return;
  const auto node = make_node(name, inputs, outputs.size());
  node->backward = std::move(backward);
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].set_producer(node, static_cast<int>(i));
  }
}

void observe_outputs(OutputObserver observer) { output_observer = std::move(observer); }

bool grad_enabled() { return grad_is_enabled; }

// A collector exists only while recompute() runs a segment for the first time.
bool may_be_differentiated() { return grad_is_enabled || input_collector != nullptr; }

InputCollector::InputCollector() : before_(std::exchange(input_collector, this)) {}
InputCollector::~InputCollector() { input_collector = before_; }

void InputCollector::add(std::span<const Tensor> inputs) {
  for (const Tensor& input : inputs) {
    if (!input.defined() || !input.requires_grad()) continue;
    const bool known = std::any_of(inputs_.begin(), inputs_.end(),
                                   [&input](const Tensor& other) { return other.same(input); });
    if (!known) inputs_.push_back(input);
  }
}

GradMode::GradMode(bool on)
    : before_(std::exchange(grad_is_enabled, on)),
      collector_before_(std::exchange(input_collector, on ? input_collector : nullptr)) {}
GradMode::~GradMode() {
  grad_is_enabled = before_;
  input_collector = collector_before_;
}

/// One backward walk over the graph that led to some outputs. The caller calls, in this order: the
/// constructor, begin_gradients, count_contributions, start, run. All contributions are counted
/// before the first node runs, because a parameter's gradient is treated as complete as soon as its
/// number of awaited contributions (Leaf::awaited) falls to zero.
///
/// The backward of a node may run operations again (InputGradients::differentiate_through). A
/// nested pass then visits only the nodes of these operations. A nested pass must keep the outer
/// pass's gradients, so its caller calls check_gradients_begun instead of begin_gradients.
class BackwardPass {
 public:
  /// Collects the nodes that led to `outputs`, except those with a sequence number below `begin`.
  explicit BackwardPass(std::span<const Tensor> outputs, int64_t begin = 0) : begin_(begin) {
    for (const Tensor& output : outputs) {
      if (output.defined()) collect(output.producer());
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      // Checked before anything is computed, so no hook has been called if this check fails.
      TESSERA_CHECK(nodes_[i]->backward != nullptr,
                    "backward: the graph of '{}' was already used by an earlier backward",
                    nodes_[i]->name);
      for (const Node::Edge& edge : nodes_[i]->inputs) collect(edge.producer);
    }
    // Every node was created after its producers. So a walk from the newest node to the oldest
    // visits a node only after all nodes that use its outputs.
    std::sort(nodes_.begin(), nodes_.end(),
              [](const auto& a, const auto& b) { return a->sequence > b->sequence; });
  }

  void begin_gradients() {
    for_each_parameter([](const Node&, Leaf& leaf) {
      leaf.awaited = 0;
      leaf.gradient = {};
    });
  }

  void check_gradients_begun(const char* name) {
    for_each_parameter([name](const Node& node, const Leaf& leaf) {
      TESSERA_CHECK(leaf.awaited > 0,
                    "{}: '{}' uses parameter '{}' when the segment runs again, but not in its "
                    "first run",
                    name, node.name, leaf.name);
    });
  }

  void run() {
    for (auto& node : nodes_) {
      visit(*node);
      node.reset();
    }
  }

  void count_contributions() {
    for_each_parameter([](const Node&, Leaf& leaf) { ++leaf.awaited; });
  }

  /// Delivers the gradient of one input to the input's producer or parameter. For a parameter,
  /// counts one contribution as arrived, and adds `gradient` if it is defined. `gradient` is
  /// undefined if the contribution was written in place, or if nothing was computed for the input.
  static void deliver(const Node::Edge& edge, Tensor gradient) {
    if (edge.parameter.defined()) {
      Leaf& leaf = *edge.parameter.leaf();
      if (gradient.defined()) {
        kernels::add(current_context(gradient.device()), leaf.gradient, leaf.gradient, gradient);
      }
      if (--leaf.awaited == 0 && leaf.gradient.defined() && leaf.gradient_complete) {
        leaf.gradient_complete();
      }
      return;
    }
    if (edge.producer) add_to(*edge.producer, edge.output_index, std::move(gradient));
  }

  void start(const Tensor& output, Tensor gradient) {
    if (output.defined() && output.producer()) {
      add_to(*output.producer(), output.output_index(), std::move(gradient));
    }
  }

 private:
  static void add_to(Node& node, int output, Tensor gradient) {
    if (!gradient.defined()) return;
    Tensor& slot = node.output_gradients[static_cast<size_t>(output)];
    slot = slot.defined() ? added(std::move(slot), gradient) : std::move(gradient);
  }

  void collect(const std::shared_ptr<Node>& node) {
    if (node && node->sequence >= begin_ && seen_.insert(node.get()).second) {
      nodes_.push_back(node);
    }
  }

  template <class Body>
  void for_each_parameter(Body&& body) {
    for (const auto& node : nodes_) {
      for (const Node::Edge& edge : node->inputs) {
        if (edge.parameter.defined()) body(*node, *edge.parameter.leaf());
      }
    }
  }

  void visit(Node& node) {
    const bool reached = std::any_of(node.output_gradients.begin(), node.output_gradients.end(),
                                     [](const Tensor& gradient) { return gradient.defined(); });
    InputGradients gradients(node);
    if (reached) {
      layers_.enter(node.layer);
      const trace::Scope scope(node.name);
      node.backward(node.output_gradients, gradients);
    }
    node.backward = nullptr;  // releases the saved tensors
    node.output_gradients.clear();
    // From the last input to the first: an operation lists its parameters in order of registration,
    // but the optimizer expects their gradients in reverse order of registration.
    for (size_t i = node.inputs.size(); i-- > 0;) {
      if (!gradients.delivered_[i]) deliver(node.inputs[i], std::move(gradients.gradients_[i]));
    }
  }

  int64_t begin_;
  trace::LayerSpans layers_;
  std::unordered_set<const Node*> seen_;
  std::vector<std::shared_ptr<Node>> nodes_;
};

void InputGradients::written(int input) {
  const auto i = static_cast<size_t>(input);
  TESSERA_CHECK(!delivered_[i], "{}: the gradient of input {} is written twice", node_.name, input);
  delivered_[i] = true;
  BackwardPass::deliver(node_.inputs[i], std::move(gradients_[i]));
}

void InputGradients::differentiate_through(const Operations& operations,
                                           std::vector<Tensor> inputs) {
  const int64_t begin = next_sequence.load(std::memory_order_relaxed);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Node::Edge& edge = node_.inputs[i];
    if (!edge.producer) continue;
    // Gives inputs[i] the history of the node's input, so its gradient reaches the outer graph.
    inputs[i] = inputs[i].detach();
    inputs[i].set_producer(edge.producer, edge.output_index);
  }
  std::vector<Tensor> outputs;
  {
    const GradMode with_gradients(true);
    outputs = operations(inputs);
  }
  inputs.clear();
  std::vector<Tensor>& gradients = node_.output_gradients;
  TESSERA_CHECK(outputs.size() == gradients.size(),
                "{}: {} outputs when it runs again, expected {}", node_.name, outputs.size(),
                gradients.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!gradients[i].defined()) outputs[i] = {};
  }
  BackwardPass pass(outputs, begin);
  pass.check_gradients_begun(node_.name);
  pass.count_contributions();
  for (Node::Edge& edge : node_.inputs) {
    // The outer pass has counted this node as one contribution to each of its parameters. The
    // nested pass delivers this contribution in parts. So the counted contribution is delivered
    // here without a gradient. This happens after the nested pass has counted the parts, because
    // otherwise a parameter's number of awaited contributions could reach zero too early.
    if (edge.parameter.defined()) BackwardPass::deliver(std::exchange(edge, {}), {});
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    pass.start(outputs[i], std::exchange(gradients[i], {}));
  }
  outputs.clear();  // so that run() can free the outputs' memory
  pass.run();
}

Tensor loss_with_history(const Tensor& loss) {
  const Tensor recorded = loss.leaf() && loss.requires_grad() ? ops::scale(loss, 1.0f) : loss;
  TESSERA_CHECK(recorded.producer() != nullptr,
                "backward: the loss has no history (no trained parameter, or gradients are off)");
  return recorded;
}

void backward(const Tensor& of, float scale) {
  TESSERA_CHECK(of.elements() == 1, "backward: the loss has shape {}, expected one element",
                of.shape());
  const Tensor loss = loss_with_history(of);
  const trace::Scope scope("backward");
  const NoGrad no_grad;
  BackwardPass pass(std::span(&loss, 1));
  pass.begin_gradients();
  pass.count_contributions();
  Tensor seed = Tensor::empty(loss.shape(), loss.dtype(), loss.device());
  kernels::fill(current_context(loss.device()), seed, scale);
  pass.start(loss, std::move(seed));
  pass.run();
}

}  // namespace tessera
