// Predicts, before a training step runs, the memory that a model's operations will take. The caller
// replays the model's operations on the tape, in the order of the model's code. The values have a
// size but no contents. The tape counts the bytes that are alive, and their peak.
//
//   MemoryTape tape(true);
//   Value y = tape.empty(shape, dtype);                       // an operation's output
//   tape.record(y, {x.memory}, {{&x}});                       // input x, kept for backward
//   tape.backward();
//   tape.peak();
//
// The tape does not use core/autograd.h, but implements that file's memory rules itself.
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

/// Bytes that are alive now, and their peak.
struct AliveBytes {
  int64_t now = 0;
  int64_t peak = 0;
};

/// The memory of a tensor, without contents. The bytes count as alive while the object exists.
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
  Memory memory = nullptr;  // nullptr for an input whose memory is not counted
  int64_t producer = -1;    // index of the operation that computed the value; -1: needs no gradient
  size_t output = 0;        // the value's index among the operation's outputs

  int64_t bytes() const { return shape.elements() * dtype_size(dtype); }
};

class MemoryTape {
 public:
  /// If `training` is false, operations are not recorded.
  explicit MemoryTape(bool training) : training_(training) {}
  MemoryTape(const MemoryTape&) = delete;
  MemoryTape& operator=(const MemoryTape&) = delete;

  bool training() const { return training_; }
  Memory block(int64_t bytes) { return std::make_shared<const MemoryBlock>(alive_, bytes); }
  Value empty(const Shape& shape, DType dtype);

  /// An input of an operation. If `handed_on` is true, the input's gradient is the output's
  /// gradient itself. Otherwise the input's gradient gets new memory, unless
  /// write_gradient_in_place() is called.
  struct Input {
    const Value* value;  // gets no gradient if it is nullptr or has no producer
    bool handed_on = false;
  };
  /// Records an operation with output `y`. The operation's backward closure keeps `kept` alive. The
  /// operation becomes a node of the graph only if an input gets a gradient or `has_parameters` is
  /// true.
  void record(Value& y, std::vector<Memory> kept, std::initializer_list<Input> inputs,
              bool has_parameters = false) {
    record(std::span(&y, 1), std::move(kept), inputs, has_parameters);
  }
  /// Records an operation with several outputs.
  void record(std::span<Value> outputs, std::vector<Memory> kept,
              std::initializer_list<Input> inputs, bool has_parameters = false);
  /// Marks the last recorded operation. In backward this operation writes the gradient of its only
  /// input over the first tensor in `kept`.
  void write_gradient_in_place() {
    if (training_) operations_.back().in_place = true;
  }

  /// Replays backward, from the last operation to the first. If a value has several uses, each
  /// later gradient is added to the sum of the earlier ones. The sum is written in place if no
  /// other tensor shares its memory, else into new memory.
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
    std::vector<Memory> kept;  // alive until the backward closure has run
    std::vector<Edge> inputs;  // the inputs that get a gradient
    bool in_place = false;
    int64_t bytes = 0;              // bytes of the first output
    std::vector<Memory> gradients;  // gradients of the outputs
  };

  void deliver(const Edge& edge, Memory gradient);

  bool training_;
  AliveBytes alive_;  // must outlive operations_, whose MemoryBlocks refer to it
  std::vector<Operation> operations_;
};

}  // namespace tessera::models
