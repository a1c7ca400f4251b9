// Define-by-run automatic differentiation.
//
// An operation computes its output and records a node: which inputs want a gradient, and a closure
// that turns the gradients of the outputs into those of the inputs.
//
//   Tensor gelu(const Tensor& x) {
//     Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
//     kernels::gelu_forward(current_context(x.device()), y, x);
//     return record("gelu", y, {x}, [x = saved(x)](const Tensor& dy, InputGradients& grads) {
//       kernels::gelu_backward(current_context(x.device()), grads.destination(0), dy, x);
//     });
//   }
//
// Accumulation rules, for every operation:
//  - a kernel overwrites its destination; autograd adds where a tensor has more than one use;
//  - a gradient that was handed on (`pass`) may be shared: it is added to only while nobody else
//    holds it;
//  - a parameter's first contribution is written straight into the buffer that its Leaf provides,
//    each later one of the same backward into scratch, and is added once per element;
//  - a closure captures `saved(x)`, never x itself: tensors without history, so that memory goes as
//    soon as backward has passed and long graphs are released without recursion.
//
// The memory of a parameter may come and go: it is there while an `InUse` of the parameter lives.
// So an operation begins with `InUse`, its closure does too where it reads a value, and neither
// keeps a view of a parameter.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tessera {

/// The end of the graph at a parameter. Whoever lays the parameters out sets the hooks.
struct Leaf {
  std::string name;

  /// Whether it takes a gradient. A frozen parameter takes none, and no operation is recorded for
  /// its sake; its use is announced all the same.
  bool trainable = true;

  /// Called before an operation reads the parameter's value, forward or backward. What backward
  /// computes without the value (the gradient of an embedding's table, of a bias) calls nothing.
  std::function<void()> about_to_be_used;
  /// Called when that operation is done with it: once for each call of about_to_be_used.
  std::function<void()> no_longer_used;
  /// Memory for this micro-batch's gradient; asked for at its first contribution. Without this hook
  /// a tensor of its own is allocated.
  std::function<Tensor()> gradient_buffer;
  /// Called once in a backward, when every contribution has arrived in `gradient`.
  std::function<void()> gradient_complete;

  /// The gradient of the last backward that reached the parameter.
  Tensor gradient;

  int64_t awaited = 0;  // contributions still to come in the running backward
};

class InputGradients;

/// The gradients of an operation's outputs -> those of its inputs. An output that nothing used has
/// an undefined gradient.
using MultiBackward = std::function<void(std::span<const Tensor>, InputGradients&)>;
using Backward = std::function<void(const Tensor&, InputGradients&)>;

/// One recorded operation.
struct Node {
  struct Edge {
    std::shared_ptr<Node> producer;  // or, for a parameter, leaf
    int output_index = 0;
    Tensor parameter;  // the handle on a parameter, whose memory may come and go
    Shape shape;
    DType dtype = DType::f32;
    Device device;

    bool wanted() const { return producer || parameter.defined(); }
  };

  ~Node();

  const char* name = "";
  int64_t sequence = 0;  // order of creation, which is a topological one
  std::vector<Edge> inputs;
  MultiBackward backward;
  std::vector<Tensor> output_gradients;
};

/// Where a node's closure leaves the gradients of its inputs.
class InputGradients {
 public:
  explicit InputGradients(Node& node)
      : node_(node), given_(node.inputs.size()), delivered_(node.inputs.size()) {}

  bool wanted(int input) const { return node_.inputs[static_cast<size_t>(input)].wanted(); }

  /// Memory of the input's shape that the closure must overwrite as a whole.
  Tensor destination(int input);

  struct Sum {
    Tensor gradient;
    bool accumulate;  // true: add to what is there; false: overwrite
  };
  /// As destination, for kernels that can add in place: once per element, after their own fp32 sum.
  Sum accumulating_destination(int input);

  /// Hands an existing tensor on as the input's gradient.
  void pass(int input, const Tensor& gradient);

  /// Says that the input's gradient is written. Whoever waits for that of a parameter need not wait
  /// for those of the others; it may be called where a gradient is not wanted.
  void written(int input);

  /// For a node that stands for several operations: runs them, recorded, on `inputs` (the values of
  /// the node's first inputs, which get the history of those), and differentiates through them in
  /// the node's place. What `operations` returns stands for the node's outputs. The node's inputs
  /// that are parameters must be those that the operations have.
  using Operations = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;
  void through(const Operations& operations, std::vector<Tensor> inputs);

 private:
  friend class BackwardPass;
  Node& node_;
  std::vector<Tensor> given_;
  std::vector<bool> delivered_;
};

/// x for use in a closure: without history, except that a parameter stays a handle on the
/// parameter.
Tensor saved(const Tensor& x);

/// What a closure keeps of an input: the input, or, where its operation offered to compute it again
/// (norms and activations do: they cost little beside a product and are as large), only the way to
/// do so. Its memory then goes when the forward is done with it.
class Kept {
 public:
  explicit Kept(const Tensor& x);
  /// The value, the same bits in either case. A parameter is the parameter: announce it.
  Tensor get() const { return recompute_ ? (*recompute_)() : tensor_; }

 private:
  Tensor tensor_;
  std::shared_ptr<const Tensor::Recompute> recompute_;
};

/// Records an operation if gradients are on and an input wants one; returns `output` with history.
Tensor record(const char* name, Tensor output, std::initializer_list<Tensor> inputs,
              Backward backward);
/// The same for several outputs, in place.
void record(const char* name, std::span<Tensor> outputs, std::span<const Tensor> inputs,
            MultiBackward backward);
void record(const char* name, std::span<Tensor> outputs, std::initializer_list<Tensor> inputs,
            MultiBackward backward);

/// While it lives, collects those inputs of operations on this thread, recorded or not, of which a
/// gradient could be wanted: trainable parameters and tensors with history, each once.
class InputCollector {
 public:
  InputCollector();
  ~InputCollector();
  InputCollector(const InputCollector&) = delete;
  InputCollector& operator=(const InputCollector&) = delete;

  const std::vector<Tensor>& inputs() const { return inputs_; }
  void add(std::span<const Tensor> inputs);

 private:
  std::vector<Tensor> inputs_;
  InputCollector* before_;
};

/// Calls `observer` with every operation's output on this thread, recorded or not; nullptr ends it.
/// For finding where a value went wrong.
using OutputObserver = std::function<void(const char* operation, const Tensor& output,
                                          std::span<const Tensor> inputs)>;
void observe_outputs(OutputObserver observer);

/// Whether operations are recorded on this thread.
bool grad_enabled();
class GradMode {
 public:
  explicit GradMode(bool on);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool before_;
};
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};

/// Tells the hooks of parameters among `tensors` that an operation reads them while this lives.
/// A pointer may be null, for what is not read this time.
class InUse {
 public:
  InUse(std::initializer_list<const Tensor*> tensors);
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  InUse() = default;  // once it is done the destructor runs, whatever a hook throws

  std::vector<std::shared_ptr<Leaf>> leaves_;
};

/// Computes the gradient of `loss`, one element, times `scale` for every parameter that it was made
/// from, and frees the graph on the way. Throws if the loss has no history.
void backward(const Tensor& loss, float scale = 1.0f);

}  // namespace tessera
