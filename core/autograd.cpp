#include "core/autograd.h"

#include <algorithm>
#include <atomic>
#include <unordered_set>

#include "core/kernels.h"
#include "core/trace.h"

namespace tessera {
namespace {

thread_local bool grad_is_enabled = true;
thread_local OutputObserver output_observer;
std::atomic<int64_t> next_sequence{0};

Node::Edge edge_to(const Tensor& input) {
  Node::Edge edge;
  if (!input.defined()) return edge;
  edge.shape = input.shape();
  edge.dtype = input.dtype();
  edge.device = input.device();
  if (input.leaf()) {
    edge.parameter = input;
  } else {
    edge.producer = input.producer();
    edge.output_index = input.output_index();
  }
  return edge;
}

bool any_wanted(std::initializer_list<Tensor> inputs) {
  return grad_is_enabled && std::any_of(inputs.begin(), inputs.end(), [](const Tensor& input) {
           return input.defined() && input.requires_grad();
         });
}

std::shared_ptr<Node> make_node(const char* name, std::initializer_list<Tensor> inputs,
                                size_t outputs) {
  auto node = std::make_shared<Node>();
  node->name = name;
  node->sequence = next_sequence.fetch_add(1, std::memory_order_relaxed);
  node->inputs.reserve(inputs.size());
  for (const Tensor& input : inputs) node->inputs.push_back(edge_to(input));
  node->output_gradients.resize(outputs);
  return node;
}

// sum of two gradients; in place where nobody else holds the first.
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
  // A long chain of producers is released here one by one; left to the members' destructors it
  // would recurse once a node.
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
  // A later contribution to a parameter: into scratch, added once per element when it is complete.
  Tensor& given = given_[static_cast<size_t>(input)];
  given = current_context(sum.gradient.device())
              .workspace(sum.gradient.shape(), sum.gradient.dtype());
  return given;
}

InputGradients::Sum InputGradients::accumulating_destination(int input) {
  const Node::Edge& edge = node_.inputs[static_cast<size_t>(input)];
  TESSERA_CHECK(edge.wanted(), "{}: the gradient of input {} is not wanted", node_.name, input);
  Tensor& given = given_[static_cast<size_t>(input)];
  if (!edge.parameter.defined()) {
    given = Tensor::empty(edge.shape, edge.dtype, edge.device);
    return {given, false};
  }
  Leaf& leaf = *edge.parameter.leaf();
  if (leaf.gradient.defined()) return {leaf.gradient, true};
  if (leaf.gradient_buffer) {
    leaf.gradient = leaf.gradient_buffer();
    TESSERA_CHECK(leaf.gradient.shape() == edge.shape,
                  "{}: the gradient buffer of parameter '{}' has shape {}, expected {}", node_.name,
                  leaf.name, leaf.gradient.shape(), edge.shape);
  } else {
    leaf.gradient = Tensor::empty(edge.shape, edge.dtype, edge.parameter.device(),
                                  Category::gradients);
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
    given_[static_cast<size_t>(input)] = gradient;
  }
}

Tensor saved(const Tensor& x) { return x.defined() && !x.leaf() ? x.detach() : x; }

Kept::Kept(const Tensor& x) : recompute_(x.recompute()) {
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
  if (output_observer) {
    const OutputObserver observer = output_observer;  // which may end itself while it runs
    for (const Tensor& output : outputs) {
      observer(name, output, std::span(inputs.begin(), inputs.size()));
    }
  }
  if (!any_wanted(inputs)) return;
  const auto node = make_node(name, inputs, outputs.size());
  node->backward = std::move(backward);
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].set_producer(node, static_cast<int>(i));
  }
}

void observe_outputs(OutputObserver observer) { output_observer = std::move(observer); }

bool grad_enabled() { return grad_is_enabled; }

NoGrad::NoGrad() : before_(grad_is_enabled) { grad_is_enabled = false; }
NoGrad::~NoGrad() { grad_is_enabled = before_; }

InUse::InUse(std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    if (!tensor->defined() || !tensor->leaf()) continue;
    if (tensor->leaf()->about_to_be_used) tensor->leaf()->about_to_be_used();
    if (tensor->leaf()->no_longer_used) leaves_.push_back(tensor->leaf());
  }
}

InUse::~InUse() {
  for (const auto& leaf : leaves_) leaf->no_longer_used();
}

/// One walk over the graph of a loss.
class BackwardPass {
 public:
  explicit BackwardPass(const Tensor& loss) {
    collect(loss.producer());
    // Creation order is a topological order, so its reverse needs neither recursion nor counters.
    std::sort(nodes_.begin(), nodes_.end(),
              [](const auto& a, const auto& b) { return a->sequence > b->sequence; });
    count_contributions();
  }

  void run() {
    for (auto& node : nodes_) {
      visit(*node);
      node.reset();
    }
  }

 private:
  void collect(const std::shared_ptr<Node>& root) {
    std::unordered_set<const Node*> seen{root.get()};
    nodes_.push_back(root);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      // Before anything is computed: no hook of a parameter hears of a backward that fails here.
      TESSERA_CHECK(nodes_[i]->backward != nullptr,
                    "backward: the graph of '{}' was already used by an earlier backward",
                    nodes_[i]->name);
      for (const Node::Edge& edge : nodes_[i]->inputs) {
        if (edge.producer && seen.insert(edge.producer.get()).second) {
          nodes_.push_back(edge.producer);
        }
      }
    }
  }

  void count_contributions() {
    for (const auto& node : nodes_) {
      for (const Node::Edge& edge : node->inputs) {
        if (!edge.parameter.defined()) continue;
        edge.parameter.leaf()->awaited = 0;
        edge.parameter.leaf()->gradient = {};
      }
    }
    for (const auto& node : nodes_) {
      for (const Node::Edge& edge : node->inputs) {
        if (edge.parameter.defined()) ++edge.parameter.leaf()->awaited;
      }
    }
  }

  void visit(Node& node) {
    const bool reached = std::any_of(node.output_gradients.begin(), node.output_gradients.end(),
                                     [](const Tensor& gradient) { return gradient.defined(); });
    InputGradients gradients(node);
    if (reached) {
      const trace::Scope scope(node.name);
      use_parameters(node, true);
      node.backward(node.output_gradients, gradients);
      use_parameters(node, false);
    }
    node.backward = nullptr;  // lets go of what the closure saved
    node.output_gradients.clear();
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      deliver(node.inputs[i], std::move(gradients.given_[i]));
    }
  }

  static void use_parameters(const Node& node, bool begin) {
    for (const Node::Edge& edge : node.inputs) {
      if (!edge.parameter.defined()) continue;
      const Leaf& leaf = *edge.parameter.leaf();
      const auto& hook = begin ? leaf.about_to_be_used : leaf.no_longer_used;
      if (hook) hook();
    }
  }

  static void deliver(Node::Edge& edge, Tensor gradient) {
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
    if (!edge.producer || !gradient.defined()) return;
    Tensor& slot = edge.producer->output_gradients[static_cast<size_t>(edge.output_index)];
    slot = slot.defined() ? added(std::move(slot), gradient) : std::move(gradient);
  }

  std::vector<std::shared_ptr<Node>> nodes_;
};

void backward(const Tensor& loss, float scale) {
  TESSERA_CHECK(loss.elements() == 1, "backward: the loss has shape {}, expected one element",
                loss.shape());
  TESSERA_CHECK(loss.producer() != nullptr,
                "backward: the loss has no history (no parameter took part, or gradients are off)");
  const trace::Scope scope("backward");
  const NoGrad no_grad;
  BackwardPass pass(loss);
  Tensor& seed = loss.producer()->output_gradients[static_cast<size_t>(loss.output_index())];
  seed = Tensor::empty(loss.shape(), loss.dtype(), loss.device());
  kernels::fill(current_context(loss.device()), seed, scale);
  pass.run();
}

}  // namespace tessera
