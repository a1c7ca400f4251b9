// Letters: N images, H and W pixels, C channels.
#include "models/image/image_memory.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "models/image/image_workspace.h"
#include "models/kernel_workspace.h"

namespace tessera::models {
namespace {

/// Bytes that are alive, and the most that ever were.
struct Alive {
  int64_t now = 0;
  int64_t peak = 0;
};

/// The memory of a tensor, without contents: alive as long as someone holds it.
class Block {
 public:
  Block(Alive& alive, int64_t bytes) : alive_(alive), bytes_(bytes) {
    alive_.now += bytes_;
    alive_.peak = std::max(alive_.peak, alive_.now);
  }
  ~Block() { alive_.now -= bytes_; }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

 private:
  Alive& alive_;
  int64_t bytes_;
};
using Memory = std::shared_ptr<const Block>;

struct Value {
  Shape shape;           // (N, H, W, C) or (N, C)
  Memory memory;         // none of the images, which are not counted
  int64_t producer = -1;  // the operation that made it
};

/// The operations of a micro-batch, one function each, as core/image_ops.h has them. In training
/// each leaves on the tape what its gradient keeps and which of its inputs get one.
class Tape {
 public:
  Tape(const ImageMicroBatch& micro, bool training) : micro_(micro), training_(training) {
    if (!can_be_asked(micro.device)) return;
    workspace_ = ImageWorkspace{current_context(micro.device), micro.dtype, training};
    workspace_bytes_ = 0;
  }

  Value images(const ImageSizes& sizes) const {
    return {{micro_.images, sizes.side, sizes.side, sizes.channels}, nullptr};
  }

  Value conv2d(const Value& x, int64_t out, int64_t kernel, const Conv2dOptions& options,
               bool has_bias) {
    const Conv2dSizes sizes = conv2d_sizes(x.shape, {out, x.shape[3], kernel, kernel}, options);
    take([&](const auto& of) { return of.conv2d(sizes, has_bias, x.producer >= 0); });
    Value y = empty({sizes.images, sizes.out_height, sizes.out_width, out});
    record(y, {x.memory}, {&x});
    return y;
  }

  Value batch_norm(const Value& x, bool relu, const Value* residual = nullptr) {
    const int64_t channels = x.shape[-1];
    take([&](const auto& of) { return of.batch_norm(x.shape.elements() / channels, channels); });
    const Memory mean = training_ ? block(4 * channels) : nullptr;
    const Memory variance = training_ ? block(4 * channels) : nullptr;
    const Memory rstd = block(4 * channels);
    Value y = empty(x.shape);
    record(y, {x.memory, relu ? y.memory : nullptr, mean, rstd}, {&x, residual});
    return y;
  }

  Value relu(const Value& x) {
    Value y = empty(x.shape);
    record(y, {y.memory}, {&x});
    return y;
  }

  Value max_pool(const Value& x, const PoolOptions& options) {
    const auto& [kernel, stride, padding] = options;
    const int64_t side = (x.shape[1] + 2 * padding.height - kernel.height) / stride.height + 1;
    Value y = empty({x.shape[0], side, side, x.shape[3]});
    const Memory places = block(y.shape.elements());
    record(y, {places}, {&x});
    return y;
  }

  Value global_avg_pool(const Value& x) { return without_kept(x, {x.shape[0], x.shape[3]}); }

  Value flatten(const Value& x) {
    const int64_t pixels = x.shape[1] * x.shape[2];
    const Shape flat{x.shape[0], x.shape[3] * pixels};
    // A reshape shares the memory and hands the gradient on.
    if (pixels == 1 || x.shape[3] == 1) return {flat, x.memory, x.producer};
    return without_kept(x, flat);
  }

  Value dropout(const Value& x, float probability) {
    return training_ && probability > 0 ? without_kept(x, x.shape) : x;
  }

  Value linear(const Value& x, int64_t out) {
    take([&](const auto& of) { return of.linear(x.shape[0], x.shape[1], out); });
    Value y = empty({x.shape[0], out});
    record(y, {x.memory}, {&x});
    return y;
  }

  Value cross_entropy(const Value& logits) {
    const int64_t rows = logits.shape[0];
    const bool smoothed = micro_.label_smoothing > 0;
    take([&](const auto& of) { return of.cross_entropy(rows, logits.shape[1], smoothed); });
    const bool widens = !training_ && micro_.dtype != DType::f32;
    const Memory wide = widens ? block(4 * logits.shape.elements()) : nullptr;
    const Memory logsumexp = block(4 * rows);
    Value loss = {{}, block(4)};
    record(loss, {logits.memory, logsumexp}, {&logits});
    // Nobody else holds the logits: their gradient takes their place.
    if (training_) operations_.back().in_place = true;
    return loss;
  }

  /// From the last operation on. A gradient of two uses is added to the first of them.
  void backward() {
    operations_.back().gradient = block(4);
    for (; !operations_.empty(); operations_.pop_back()) {
      Operation& operation = operations_.back();
      std::vector<Memory> given;
      for (const Input& input : operation.inputs) {
        given.push_back(operation.in_place ? operation.kept[0] : block(input.bytes));
      }
      operation.kept.clear();
      operation.gradient = nullptr;
      for (size_t i = 0; i < given.size(); ++i) {
        Memory& gradient = operations_[static_cast<size_t>(operation.inputs[i].producer)].gradient;
        if (!gradient) gradient = std::move(given[i]);
      }
    }
  }

  ImageMemory memory() const { return {alive_.peak, workspace_bytes_}; }

 private:
  struct Input {
    int64_t producer;
    int64_t bytes;
  };
  struct Operation {
    std::vector<Memory> kept;   // by its gradient's closure
    std::vector<Input> inputs;  // that get a gradient
    bool in_place = false;      // the gradient is written over what is kept first
    Memory gradient = nullptr;  // of its output
  };

  Memory block(int64_t bytes) { return std::make_shared<const Block>(alive_, bytes); }
  int64_t bytes_of(const Shape& shape) const { return shape.elements() * dtype_size(micro_.dtype); }
  Value empty(const Shape& shape) { return {shape, block(bytes_of(shape))}; }

  Value without_kept(const Value& x, const Shape& shape) {
    Value y = empty(shape);
    record(y, {}, {&x});
    return y;
  }

  void record(Value& y, std::vector<Memory> kept, std::initializer_list<const Value*> inputs) {
    if (!training_) return;
    Operation operation{.kept = std::move(kept), .inputs = {}};
    for (const Value* x : inputs) {
      if (x == nullptr || x->producer < 0) continue;
      operation.inputs.push_back({x->producer, bytes_of(x->shape)});
    }
    y.producer = std::ssize(operations_);
    operations_.push_back(std::move(operation));
  }

  template <class Ask>
  void take(Ask&& ask) {
    if (workspace_) workspace_bytes_ = std::max(*workspace_bytes_, ask(*workspace_));
  }

  ImageMicroBatch micro_;
  bool training_;
  std::optional<ImageWorkspace> workspace_;
  std::optional<int64_t> workspace_bytes_;
  Alive alive_;  // before what counts there
  std::vector<Operation> operations_;
};

struct Filter {
  int64_t out;
  int64_t kernel;
  int64_t stride = 1;
};

/// Without a bias, as a norm follows; of the same size for stride 1.
Value convolution(Tape& tape, const Value& x, const Filter& filter) {
  return tape.conv2d(x, filter.out, filter.kernel,
                     {.stride = filter.stride, .padding = filter.kernel / 2}, false);
}
Value normalized(Tape& tape, const Value& x, const Filter& filter, bool relu) {
  return tape.batch_norm(convolution(tape, x, filter), relu);
}

/// nn::BasicBlock and nn::Bottleneck.
Value residual_block(Tape& tape, const Value& x, const std::vector<Filter>& filters,
                     int64_t stride) {
  const Filter& last = filters.back();
  Value hidden = x;
  for (size_t i = 0; i + 1 < filters.size(); ++i) {
    hidden = normalized(tape, hidden, filters[i], true);
  }
  hidden = convolution(tape, hidden, last);
  const bool is_projected = x.shape[3] != last.out || stride != 1;
  const Value residual = is_projected ? normalized(tape, x, {last.out, 1, stride}, false) : x;
  return tape.batch_norm(hidden, true, &residual);
}

std::vector<Filter> filters_of(const ResNetConfig& config, int64_t width, int64_t stride) {
  if (!config.bottleneck) return {{width, 3, stride}, {width, 3}};
  return {{width, 1}, {width, 3, stride}, {4 * width, 1}};
}

Value logits(Tape& tape, const ResNetConfig& config) {
  const Filter first = config.small_images ? Filter{config.width, 3} : Filter{config.width, 7, 2};
  Value x = normalized(tape, tape.images(config.sizes), first, true);
  if (!config.small_images) x = tape.max_pool(x, {.kernel = 3, .stride = 2, .padding = 1});
  for (size_t i = 0; i < config.blocks.size(); ++i) {
    Value y = x;  // a stage's input is there until the stage ends
    for (int64_t block = 0; block < config.blocks[i]; ++block) {
      const int64_t stride = block == 0 && i > 0 ? 2 : 1;
      y = residual_block(tape, y, filters_of(config, config.width << i, stride), stride);
    }
    x = y;
  }
  return tape.linear(tape.global_avg_pool(x), config.sizes.classes);
}

Value logits(Tape& tape, const VggConfig& config) {
  Value x = tape.images(config.sizes);
  for (const std::vector<int64_t>& stage : config.stages) {
    for (const int64_t channels : stage) {
      x = tape.conv2d(x, channels, 3, {.padding = 1}, true);
      x = tape.relu(x);
    }
    x = tape.max_pool(x, {.kernel = 2, .stride = 2});
  }
  const Value features = tape.flatten(x);
  x = features;  // these are there until the end
  for (int layer = 0; layer < 2; ++layer) {
    x = tape.linear(x, config.hidden);
    x = tape.relu(x);
    x = tape.dropout(x, config.dropout);
  }
  return tape.linear(x, config.sizes.classes);
}

Value loss(Tape& tape, const ImageConfig& config) {
  return tape.cross_entropy(
      std::visit([&tape](const auto& model) { return logits(tape, model); }, config));
}

}  // namespace

ImageMemory image_training_memory(const ImageConfig& config, const ImageMicroBatch& micro) {
  Tape tape(micro, true);
  const Value of_model = loss(tape, config);
  tape.backward();
  return tape.memory();
}

ImageMemory image_evaluation_memory(const ImageConfig& config, const ImageMicroBatch& micro) {
  Tape tape(micro, false);
  loss(tape, config);
  return tape.memory();
}

}  // namespace tessera::models
