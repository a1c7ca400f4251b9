#include "models/memory_tape.h"

#include <utility>

namespace tessera::models {

MemoryBlock::MemoryBlock(AliveBytes& alive, int64_t bytes) : alive_(alive), bytes_(bytes) {
  alive_.now += bytes_;
  alive_.peak = std::max(alive_.peak, alive_.now);
}

Value MemoryTape::empty(const Shape& shape, DType dtype) {
  Value value{.shape = shape, .dtype = dtype};
  value.memory = block(value.bytes());
  return value;
}

void MemoryTape::record(std::span<Value> outputs, std::vector<Memory> kept,
                        std::initializer_list<Input> inputs, bool has_parameters) {
  if (!training_) return;
  Operation operation{.kept = std::move(kept),
                      .inputs = {},
                      .bytes = outputs[0].bytes(),
                      .gradients = std::vector<Memory>(outputs.size())};
  for (const auto& [value, handed_on] : inputs) {
    if (value == nullptr || value->producer < 0) continue;
    operation.inputs.push_back({value->producer, value->output, value->bytes(), handed_on});
  }
  if (operation.inputs.empty() && !has_parameters) return;
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i].producer = std::ssize(operations_);
    outputs[i].output = i;
  }
  operations_.push_back(std::move(operation));
}

void MemoryTape::deliver(const Edge& edge, Memory gradient) {
  Memory& slot = operations_[static_cast<size_t>(edge.producer)].gradients[edge.output];
  if (!slot) {
    slot = std::move(gradient);
  } else if (slot.use_count() > 1) {
    // Another tensor shares the first gradient's memory, so the sum is written to new memory.
    slot = block(edge.bytes);
  }
}

void MemoryTape::backward() {
  operations_.back().gradients[0] = block(operations_.back().bytes);
  for (; !operations_.empty(); operations_.pop_back()) {
    Operation& operation = operations_.back();
    std::vector<Memory>& outputs = operation.gradients;
    if (std::none_of(outputs.begin(), outputs.end(), [](const Memory& one) { return one; })) {
      continue;
    }
    std::vector<Memory> given;
    for (const Edge& input : operation.inputs) {
      if (input.handed_on) {
        given.push_back(outputs[0]);
      } else {
        given.push_back(operation.in_place ? operation.kept[0] : block(input.bytes));
      }
    }
    // deliver() may take memory, to add a new gradient to an earlier one. The kept tensors and the
    // output gradients are freed before that, because autograd frees them before such an addition.
    operation.kept.clear();
    outputs.clear();
    for (size_t i = 0; i < given.size(); ++i) deliver(operation.inputs[i], std::move(given[i]));
  }
}

}  // namespace tessera::models
