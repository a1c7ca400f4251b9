// The memory that a model's operations take in a training step, before it runs. A formula walks
// through the model as its code does, with values that have a size and no contents, and the tape
// keeps the books: what is alive, and the most that ever was.
//
//   MemoryTape tape(true);
//   Value y = tape.empty(shape, dtype);                       // what an operation gives
//   tape.record(y, {x.memory}, {{&x}});                       // what its gradient keeps, and wants
//   tape.backward();
//   tape.peak();
//
// It shares nothing with the run: the rules of core/autograd.h are written here once more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace tessera::models {

/// Bytes that are alive, and the most that ever were.
struct AliveBytes {
  int64_t now = 0;
  int64_t peak = 0;
};

/// The memory of a tensor, without contents: alive as long as someone holds it.
class MemoryBlock {
 public:
  MemoryBlock(AliveBytes& alive, int64_t bytes);
  ~MemoryBlock() { alive_.now -= bytes_; }
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;

 private:
  AliveBytes& alive_;
  int64_t bytes_;
};
using Memory = std::shared_ptr<const MemoryBlock>;

struct Value {
  Shape shape = {};
  DType dtype = DType::f32;
  Memory memory = nullptr;  // none of an input that is not counted
  int64_t producer = -1;    // the operation that made it, where its gradient is wanted
  size_t output = 0;        // which of the operation's outputs it is

  int64_t bytes() const { return shape.elements() * dtype_size(dtype); }
};

class MemoryTape {
 public:
  /// Without `training` nothing is recorded.
  explicit MemoryTape(bool training) : training_(training) {}
  MemoryTape(const MemoryTape&) = delete;
  MemoryTape& operator=(const MemoryTape&) = delete;

  bool training() const { return training_; }
  Memory block(int64_t bytes) { return std::make_shared<const MemoryBlock>(alive_, bytes); }
  Value empty(const Shape& shape, DType dtype);

  /// An input of an operation. Its gradient is memory of its own, or it is that of the output,
  /// handed on.
  struct Input {
    const Value* value;  // nullptr, or without a producer: no gradient
    bool handed_on = false;
  };
  /// Records an operation that gives `y`. It makes a node of the graph only where an input has a
  /// gradient, or where it `has_parameters`.
  void record(Value& y, std::vector<Memory> kept, std::initializer_list<Input> inputs,
              bool has_parameters = false) {
    record(std::span(&y, 1), std::move(kept), inputs, has_parameters);
  }
  /// The same for an operation of several outputs.
  void record(std::span<Value> outputs, std::vector<Memory> kept,
              std::initializer_list<Input> inputs, bool has_parameters = false);
  /// The gradient of the operation's one input is written over what it kept first.
  void write_gradient_in_place() {
    if (training_) operations_.back().in_place = true;
  }

  /// From the last operation on. A gradient of two uses is added to the first of them, in place
  /// where nobody else holds it.
  void backward();

  int64_t peak() const { return alive_.peak; }

 private:
  struct Edge {
    int64_t producer;
    size_t output;
    int64_t bytes;
    bool handed_on;
  };
  struct Operation {
    std::vector<Memory> kept;  // by its gradient's closure
    std::vector<Edge> inputs;  // that get a gradient
    bool in_place = false;
    int64_t bytes = 0;              // of its first output
    std::vector<Memory> gradients;  // of its outputs
  };

  void deliver(const Edge& edge, Memory gradient);

  bool training_;
  AliveBytes alive_;  // before what counts there
  std::vector<Operation> operations_;
};

}  // namespace tessera::models
