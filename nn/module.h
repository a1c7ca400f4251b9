// A Module has parameters and child modules. It lists its parameters by name, in order of
// registration.
//
//   class Mlp : public Module {
//    public:
//     Mlp(int64_t width) : up_(width, 4 * width), down_(4 * width, width) {
//       add("c_fc", up_);
//       add("c_proj", down_);
//     }
//     Tensor forward(const Tensor& x) override { return down_(ops::gelu(up_(x))); }
//    private:
//     Linear up_, down_;
//   };
//
// Modules do not know about other processes. An optimizer that distributes training attaches hooks
// to a module's parameters from outside.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/trace_layer.h"
#include "nn/parameter.h"
#include "nn/running_statistics.h"

namespace tessera::nn {

struct NamedParameter {
  std::string name;  // "h.0.attn.c_attn.weight"
  Parameter parameter;
  bool shared = false;  // true: registered under several names; `name` is the first of them
  int block = -1;       // index of the block (Module::begin_block); -1 before the first block
};

struct NamedStatistics {
  std::string name;  // "layer1.0.bn1"
  std::shared_ptr<RunningStatistics> statistics;
};

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Modules with one input and one output override this function. For other modules, forward(x)
  /// throws.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x) {
    const trace::LayerScope scope(name_);
    return forward(x);
  }

  /// Returns every parameter once, in order of registration. Throws if two parameters have the same
  /// name, or if a name is not UTF-8.
  std::vector<NamedParameter> named_parameters() const;
  /// Returns the further names of shared parameters. Each is mapped to the parameter's first name,
  /// which named_parameters() lists.
  std::map<std::string, std::string> further_names() const;
  int64_t parameter_count() const;
  /// Returns the running statistics of every batch norm once, in order of registration. For a batch
  /// norm that is registered under several names, NamedStatistics::name is the first of them.
  /// Throws if a name is not UTF-8.
  std::vector<NamedStatistics> named_statistics() const;

  /// Sets the element type of all parameters. Throws if a parameter already has memory in another
  /// type (see Parameter::set_dtype).
  void to(DType dtype);

  /// Switches this module and its children to training or, if `on` is false, to evaluation. Dropout
  /// and batch norms depend on this mode. For evaluation during training, use Evaluating, which
  /// restores each module's mode.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }

  /// Returns the name under which a parent last registered this module; empty for a whole model.
  const std::string& name() const { return name_; }

 protected:
  /// Registers a parameter, and returns it.
  Parameter add(const std::string& name, const Parameter& parameter);
  /// Registers a child, which must live as long as this module. Throws if the child is this module
  /// or contains it.
  void add(const std::string& name, Module& child);
  /// Registers the running statistics of this module itself. Throws at a second call.
  void add(std::shared_ptr<RunningStatistics> statistics);
  /// Begins a block of the model. A block's parameters are used together, so ZeRO stage 3 gathers
  /// and frees them together. The block has all parameters that are registered from this call to
  /// the next call of begin_block() in any module of the model. A child's registrations and calls
  /// of begin_block() count as made when the child was added, even if the child makes them later.
  /// Blocks are numbered from 0 over the whole model.
  void begin_block();

 private:
  friend class Evaluating;
  struct Entry {
    std::string name;
    Parameter parameter;
    Module* child = nullptr;  // an entry with neither parameter nor child begins a block
  };
  /// True if `other` is this module, or is registered in it or in one of its children.
  bool contains(const Module& other) const;
  /// Appends all registered parameters. A shared parameter is appended once for each of its names.
  void collect(const std::string& prefix, int& block, std::vector<NamedParameter>& list) const;
  /// Appends all running statistics, those of a shared batch norm once for each of its names.
  void collect(const std::string& prefix, std::vector<NamedStatistics>& list) const;

  std::string name_;
  std::vector<Entry> entries_;
  std::shared_ptr<RunningStatistics> statistics_;
  bool training_ = true;
};

/// While the object lives, a module and its children are in evaluation mode. The destructor gives
/// each of them its earlier mode. A dropout that was in evaluation mode inside a model in training
/// mode thus stays in evaluation mode. The module must outlive the object.
class Evaluating {
 public:
  explicit Evaluating(Module& module);
  ~Evaluating();
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  void record(Module& module);

  std::vector<std::pair<Module*, bool>> modes_;  // each module, and whether it was in training
};

/// Allocates and initialises a model's parameters and running statistics on `device`, for inference
/// or for training without a Tessera optimizer. Parameters and statistics that already have memory
/// keep their values. Throws if a parameter belongs to an optimizer.
void materialize(Module& model, Device device = default_device(), uint64_t seed = 0);

}  // namespace tessera::nn
