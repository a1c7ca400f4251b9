#include "models/image/image_memory.h"

#include <algorithm>
#include <vector>

#include "models/image/image_workspace.h"
#include "models/kernel_workspace.h"
#include "models/memory_tape.h"

namespace tessera::models {
namespace {

/// Replays the operations of a micro-batch, with one function for each operation that the models
/// use. In training each function records the memory that the operation's closure keeps, and the
/// inputs that get a gradient.
class Tape {
 public:
  Tape(const ImageMicroBatch& micro, bool training) : tape_(training), micro_(micro) {
    if (!can_be_queried(micro.device)) return;
    workspace_ = ImageWorkspace{current_context(micro.device), micro.dtype, training};
    workspace_bytes_ = 0;
  }

  Value images(const ImageSizes& sizes) const {
    return {.shape = {micro_.images, sizes.side, sizes.side, sizes.channels},
            .dtype = micro_.dtype};
  }

  Value conv2d(const Value& x, int64_t out, int64_t kernel, const Conv2dOptions& options,
               bool has_bias) {
    const Conv2dSizes sizes = conv2d_sizes(x.shape, {out, x.shape[3], kernel, kernel}, options);
    take([&](const auto& of) { return of.conv2d(sizes, has_bias, x.producer >= 0); });
    Value y = empty({sizes.images, sizes.out_height, sizes.out_width, out});
    tape_.record(y, {x.memory}, {{&x}}, true);
    return y;
  }

  Value batch_norm(const Value& x, bool relu, const Value* residual = nullptr) {
    const int64_t channels = x.shape[-1];
    take([&](const auto& of) { return of.batch_norm(x.shape.elements() / channels, channels); });
    const Memory mean = tape_.training() ? tape_.block(4 * channels) : nullptr;
    const Memory variance = tape_.training() ? tape_.block(4 * channels) : nullptr;
    const Memory rstd = tape_.block(4 * channels);
    Value y = empty(x.shape);
    tape_.record(y, {x.memory, relu ? y.memory : nullptr, mean, rstd}, {{&x}, {residual}}, true);
    return y;
  }

  Value relu(const Value& x) {
    Value y = empty(x.shape);
    tape_.record(y, {y.memory}, {{&x}});
    return y;
  }

  Value max_pool(const Value& x, const PoolOptions& options) {
    const auto& [kernel, stride, padding] = options;
    const int64_t side = (x.shape[1] + 2 * padding.height - kernel.height) / stride.height + 1;
    Value y = empty({x.shape[0], side, side, x.shape[3]});
    const Memory places = tape_.block(y.shape.elements());
    tape_.record(y, {places}, {{&x}});
    return y;
  }

  Value global_avg_pool(const Value& x) { return without_kept(x, {x.shape[0], x.shape[3]}); }

  Value flatten(const Value& x) {
    const int64_t pixels = x.shape[1] * x.shape[2];
    const Shape flat{x.shape[0], x.shape[3] * pixels};
    // With one pixel or one channel, flatten is a reshape. A reshape shares the memory and passes
    // the gradient on.
    if (pixels == 1 || x.shape[3] == 1) return {flat, x.dtype, x.memory, x.producer};
    return without_kept(x, flat);
  }

  Value dropout(const Value& x, float probability) {
    return tape_.training() && probability > 0 ? without_kept(x, x.shape) : x;
  }

  Value linear(const Value& x, int64_t out) {
    take([&](const auto& of) { return of.linear(x.shape[0], x.shape[1], out); });
    Value y = empty({x.shape[0], out});
    tape_.record(y, {x.memory}, {{&x}}, true);
    return y;
  }

  Value cross_entropy(const Value& logits) {
    const int64_t rows = logits.shape[0];
    const bool smoothed = micro_.label_smoothing > 0;
    take([&](const auto& of) { return of.cross_entropy(rows, logits.shape[1], smoothed); });
    const bool widens = !tape_.training() && micro_.dtype != DType::f32;
    const Memory wide = widens ? tape_.block(4 * logits.shape.elements()) : nullptr;
    const Memory normalizers = tape_.block(2 * 4 * rows);  // two f32 for each row
    Value loss = tape_.empty({}, DType::f32);
    tape_.record(loss, {logits.memory, normalizers}, {{&logits}});
    tape_.write_gradient_in_place();  // no other tensor uses the logits' memory
    return loss;
  }

  void backward() { tape_.backward(); }

  ImageMemory memory() const { return {tape_.peak(), workspace_bytes_}; }

 private:
  Value empty(const Shape& shape) { return tape_.empty(shape, micro_.dtype); }

  Value without_kept(const Value& x, const Shape& shape) {
    Value y = empty(shape);
    tape_.record(y, {}, {{&x}});
    return y;
  }

  template <class Ask>
  void take(Ask&& ask) {
    if (workspace_) workspace_bytes_ = std::max(*workspace_bytes_, ask(*workspace_));
  }

  MemoryTape tape_;
  ImageMicroBatch micro_;
  std::optional<ImageWorkspace> workspace_;
  std::optional<int64_t> workspace_bytes_;
};

struct Filter {
  int64_t out;
  int64_t kernel;
  int64_t stride = 1;
};

/// Records a convolution. It has no bias, because the batch norm after it has one. With stride 1,
/// the output image is as large as the input image.
Value convolution(Tape& tape, const Value& x, const Filter& filter) {
  return tape.conv2d(x, filter.out, filter.kernel,
                     {.stride = filter.stride, .padding = filter.kernel / 2}, false);
}
Value normalized(Tape& tape, const Value& x, const Filter& filter, bool relu) {
  return tape.batch_norm(convolution(tape, x, filter), relu);
}

/// Records the forward of nn::BasicBlock or nn::Bottleneck.
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
    Value y = x;  // ResNet::forward holds a stage's input until the stage ends
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
  x = features;  // Vgg::forward holds the features until the end
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
