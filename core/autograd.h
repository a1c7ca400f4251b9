// Define-by-run automatic differentiation.
//
// An operation computes its output and records a node. The node lists which inputs need a gradient.
// The node's closure computes the gradients of the inputs from the gradients of the outputs.
//
//   Tensor gelu(const Tensor& x) {
//     const InUse in_use({&x});
//     Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
//     kernels::gelu_forward(current_context(x.device()), y, x);
//     return record("gelu", y, {x}, [x = saved(x)](const Tensor& dy, InputGradients& grads) {
//       const InUse in_backward({&x});
//       kernels::gelu_backward(current_context(x.device()), grads.destination(0), dy, x);
//     });
//   }
//
// The gradient of a tensor is the sum of contributions, one for each use of the tensor. These rules
// hold for every operation:
//  - A kernel overwrites the memory that InputGradients::destination returns. Autograd adds up the
//    contributions.
//  - A gradient given to InputGradients::pass may share memory with other tensors. Autograd adds to
//    the gradient in place only if no other tensor uses this memory.
//  - The first contribution to a parameter's gradient is written straight into the buffer that the
//    parameter's Leaf provides. In the buffer of a row-sparse table (see Leaf::look_up), the
//    looked-up rows begin as zeros, and the first contribution is added to the zeros.
//  - Each later contribution of the same backward is added to the buffer with one addition per
//    element. Either the kernel adds in place (accumulating_destination), or the kernel computes
//    the complete contribution in scratch memory, and autograd then adds it.
//  - A closure captures `saved(x)` or a `Kept`, never x itself. A saved tensor has no history (no
//    pointer to the node that made it). So a closure keeps no node alive, and long graphs are
//    released without recursion. A backward drops a node's closure right after its visit to the
//    node. This frees the memory of the saved tensors.
//
// A parameter may have no memory between its uses (in ZeRO stage 3): memory is guaranteed only
// while an `InUse` of the parameter lives. So an operation and its closure each make an `InUse`
// before they read a parameter. They must not keep views of a parameter.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/trace_layer.h"

namespace tessera {

/// The rows of a table that an operation reads.
struct TableRows {
  Tensor values;   // (R, C): the whole table, or a buffer that begins with the looked-up rows
  Tensor indices;  // the row in `values` for each index given to the operation
};

/// The leaf of the graph for a parameter. The code that places parameters in memory, such as an
/// optimizer, sets the hooks.
struct Leaf {
  std::string name;

  /// False if the parameter is frozen: it gets no gradient, and an operation that uses it is
  /// recorded only if another input needs a gradient. The hooks about_to_be_used, no_longer_used
  /// and look_up are called for a frozen parameter too.
  bool trainable = true;

  /// Called before an operation reads the parameter's value, in forward or in backward. Not called
  /// for gradients that do not need the value, such as those of an embedding's table or of a bias.
  std::function<void()> about_to_be_used;
  /// Called when an operation has finished reading the value: once per call of about_to_be_used
  /// that did not throw.
  std::function<void()> no_longer_used;
  /// Returns the memory for the gradient of this micro-batch. Called before the first contribution
  /// to the gradient is written. Without this hook autograd allocates a tensor.
  std::function<Tensor()> gradient_buffer;
  /// Called once in a backward, when all contributions have been added to `gradient`. Not called if
  /// the backward has no contribution.
  std::function<void()> gradient_complete;

  /// Set for a row-sparse table: the optimizer sends gradients of looked-up rows only, and by
  /// default updates only these rows. An operation that looks up rows calls `look_up`, not
  /// about_to_be_used. In forward and in backward, the operation reads only the returned rows. The
  /// result is valid until the micro-batch's backward has ended. For a row-sparse table,
  /// `gradient_buffer` returns a tensor with the shape of TableRows::values, and with zeros in the
  /// looked-up rows of the micro-batch. Its other rows have no meaning.
  ///
  /// If may_be_differentiated() is false, the lookup belongs to an evaluation. The lookup then does
  /// not count as one of the micro-batch, and its result is valid until the next update.
  ///
  /// Only the first `used` indices are looked up; the others may have any values.
  std::function<TableRows(const Tensor& indices, int64_t used)> look_up;

  /// The gradient of the last backward that reached the parameter.
  Tensor gradient;

  int64_t awaited = 0;  // contributions still to come in the running backward
};

class InputGradients;

/// Computes the gradients of an operation's inputs from the gradients of its outputs. The gradient
/// of an output that nothing used is an undefined tensor.
using MultiBackward = std::function<void(std::span<const Tensor>, InputGradients&)>;
using Backward = std::function<void(const Tensor&, InputGradients&)>;

/// One recorded operation.
struct Node {
  struct Edge {
    std::shared_ptr<Node> producer;  // node that made the input; null if none did
    int output_index = 0;
    Tensor parameter;  // the input itself, if it is a trainable parameter
    Shape shape;
    DType dtype = DType::f32;
    Device device;

    bool wanted() const { return producer || parameter.defined(); }
  };

  ~Node();

  const char* name = "";
  const trace::Layer* layer = nullptr;  // layer whose forward made the node; null without tracing
  int64_t sequence = 0;  // order of creation, which is a topological order
  std::vector<Edge> inputs;
  MultiBackward backward;
  std::vector<Tensor> output_gradients;
};

/// Receives the gradients of a node's inputs from the node's closure.
class InputGradients {
 public:
  explicit InputGradients(Node& node)
      : node_(node), gradients_(node.inputs.size()), delivered_(node.inputs.size()) {}

  bool wanted(int input) const { return node_.inputs[static_cast<size_t>(input)].wanted(); }

  /// Returns memory of the input's shape, which the closure must overwrite completely. For a
  /// row-sparse table, the shape is that of TableRows::values. Throws if the gradient of the input
  /// is not wanted.
  Tensor destination(int input);

  struct Sum {
    Tensor gradient;
    bool accumulate;  // true: add to the values of `gradient`; false: overwrite them
  };
  /// Like destination, for kernels that can add in place. Such a kernel first adds up all terms of
  /// an element in fp32, and then adds the result to the destination, once.
  Sum accumulating_destination(int input);

  /// Uses an existing tensor as the input's gradient. If the input is a parameter, the tensor's
  /// values are instead copied into the parameter's gradient, or added to it. Throws if the tensor
  /// does not have the input's shape.
  void pass(int input, const Tensor& gradient);

  /// Declares the input's gradient complete before the closure ends, so that a parameter's gradient
  /// can be sent while the closure computes the gradients of other inputs. Does nothing for an
  /// input whose gradient is not wanted. Throws if called twice for an input.
  void written(int input);

  /// Computes the gradients of a node that stands for several operations, such as the node of
  /// recompute(). Calls operations(inputs) with recording on; `inputs` are the values of the node's
  /// first inputs, and the results correspond to the node's outputs. Then runs backward through the
  /// recorded operations, from the gradients of the node's outputs to those of its inputs.
  ///
  /// Throws if the number of results differs from the number of outputs. Throws unless each
  /// trainable parameter that the operations use is an input of this node, or of a node that the
  /// running backward has still to visit.
  using Operations = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;
  void differentiate_through(const Operations& operations, std::vector<Tensor> inputs);

 private:
  friend class BackwardPass;
  Node& node_;
  std::vector<Tensor> gradients_;
  std::vector<bool> delivered_;
};

/// Returns the rows of `table` (V, C) that an operation reads at `indices` (i32, any shape). If the
/// table is row-sparse, looks up the first `used` indices (default: all) with Leaf::look_up, and
/// throws what this hook throws. Otherwise returns the whole table and the indices themselves.
TableRows rows_of(const Tensor& table, const Tensor& indices);
TableRows rows_of(const Tensor& table, const Tensor& indices, int64_t used);
/// Returns the argument for an `InUse`: the table, or nullptr if the table is row-sparse, because
/// operations call look_up for a row-sparse table.
const Tensor* read_whole(const Tensor& table);

/// Returns x for capture in a closure: without its history, or x itself if it is a parameter.
Tensor saved(const Tensor& x);

/// Keeps an input for a closure: the tensor itself, or a function that computes it again. The
/// function is kept if the operation that made the input offers one (Tensor::recompute). The
/// input's memory is then freed during the forward. layer_norm, residual_layer_norm, rms_norm and
/// linear with GELU offer a function for the norm or GELU, because these results are as large as
/// those of matrix products but cheap to compute.
class Kept {
 public:
  explicit Kept(const Tensor& x);
  /// Returns the input's value, with the same bits whether it was kept or is computed again. For a
  /// parameter, returns the parameter itself: hold an `InUse` of the result while reading it.
  Tensor get() const { return recompute_ ? (*recompute_)() : tensor_; }

 private:
  Tensor tensor_;
  std::shared_ptr<const Tensor::Recompute> recompute_;
};

/// Records an operation if recording is on and an input requires a gradient. Returns `output`, with
/// history if the operation was recorded.
Tensor record(const char* name, Tensor output, std::initializer_list<Tensor> inputs,
              Backward backward);
/// Records an operation with several outputs, which are given their history in place.
void record(const char* name, std::span<Tensor> outputs, std::span<const Tensor> inputs,
            MultiBackward backward);
void record(const char* name, std::span<Tensor> outputs, std::initializer_list<Tensor> inputs,
            MultiBackward backward);

/// While the object lives, collects inputs of all operations on this thread, recorded or not. The
/// exceptions are comparisons. Collects only trainable parameters and tensors with history, each
/// once. Collects nothing while a later collector or NoGrad lives.
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

/// Makes every operation on this thread, recorded or not, call `observer` with each of its outputs.
/// The exceptions are comparisons, and the mean and variance of batch_norm. nullptr ends the calls.
/// Used to find the operation that first computes a wrong value.
using OutputObserver = std::function<void(const char* operation, const Tensor& output,
                                          std::span<const Tensor> inputs)>;
void observe_outputs(OutputObserver observer);

/// True if operations are recorded on this thread.
bool grad_enabled();
/// True if a backward may differentiate this thread's operations: they are recorded, or they are
/// the first run of a segment of recompute(), which runs without recording. False in an evaluation
/// under NoGrad.
bool may_be_differentiated();
/// Turns recording on or off on this thread while the object lives.
class GradMode {
 public:
  explicit GradMode(bool on);
  ~GradMode();
  GradMode(const GradMode&) = delete;
  GradMode& operator=(const GradMode&) = delete;

 private:
  bool before_;
  InputCollector* collector_before_;
};
/// Turns recording off on this thread while the object lives. Also pauses an existing
/// InputCollector. For instance, recompute() collects the parameters of a segment that need a
/// gradient. Operations under a NoGrad in the segment contribute to no gradient, so their inputs
/// must not be collected.
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};

/// Marks the time during which an operation reads `tensors`. For each parameter among the tensors,
/// the constructor calls the hook about_to_be_used, and the destructor calls no_longer_used. A
/// pointer is null for an input that is not read. Throws as check_one_device does.
class InUse {
 public:
  InUse(std::initializer_list<const Tensor*> tensors);
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  // The public constructor delegates to this constructor. So the destructor runs even if a hook
  // throws.
  InUse() = default;

  std::vector<std::shared_ptr<Leaf>> leaves_;
};

/// Throws unless all tensors are on the same GPU or all are on CPU devices. Skips null pointers and
/// undefined tensors. An operation calls this function for operands that it does not pass to one
/// common `InUse`, such as looked-up rows.
void check_one_device(std::initializer_list<const Tensor*> tensors);

/// Returns the loss. If it is itself a trained parameter, returns a recorded copy, because the walk
/// of a backward begins at a recorded operation. Throws if the result would have no history.
Tensor loss_with_history(const Tensor& loss);

/// Computes the gradient of `loss` (one element) times `scale` for every trainable parameter that
/// the loss depends on. Visits the nodes of the graph one by one, and releases a node's saved
/// tensors right after its visit. Throws if the loss does not have one element, if
/// loss_with_history throws, or if an earlier backward has used the graph.
void backward(const Tensor& loss, float scale = 1.0f);

}  // namespace tessera
