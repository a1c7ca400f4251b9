// Measures how fast the convolutions of a ResNet run, layer by layer.
//
//   bench_conv --net resnet20 --batch 128 --threads 1 --dtype f32
//   bench_conv --net resnet18 --batch 16 --dtype bf16 > ours.json; bench/peers/conv.py ours.json
//   bench_conv --tiny                      batches of two images; one sample of a single call
//
// Prints one JSON object with a row for each kind of layer. `count` is the number of such layers in
// the network. forward_ms and backward_ms are the times of a call, as medians over samples; a
// sample is a loop of calls. A backward call computes the gradients of the weight and of the input,
// or in the first layer only that of the weight. gflops_per_s is the rate of both calls together.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/cli/command_line.h"
#include "apps/comm_bench/comm_bandwidth.h"
#include "core/cuda.h"
#include "core/ops.h"
#include "core/ops/conv2d.h"
#include "core/random.h"
#include "core/text/json_line.h"
#include "dist/device_choice.h"

namespace {

using namespace tessera;

struct Layer {
  int64_t pixels, channels, out_channels, kernel, stride;  // pixels: height and width of the input
  int64_t count;
  bool is_first = false;

  int64_t padding() const { return kernel / 2; }
};

/// Returns the layers of a network whose blocks have two 3x3 layers. `pixels` and `channels` are
/// those of the first stage, and blocks[i] is the number of blocks of stage i. Each later stage
/// halves the pixels, doubles the channels, and has one shortcut layer.
std::vector<Layer> basic_blocks(Layer first, int64_t pixels, int64_t channels,
                                const std::vector<int64_t>& blocks) {
  std::vector<Layer> layers{first, {pixels, channels, channels, 3, 1, 2 * blocks[0]}};
  for (size_t stage = 1; stage < blocks.size(); ++stage) {
    layers.push_back({pixels, channels, 2 * channels, 3, 2, 1});
    layers.push_back({pixels, channels, 2 * channels, 1, 2, 1});  // the shortcut
    pixels /= 2;
    channels *= 2;
    layers.push_back({pixels, channels, channels, 3, 1, 2 * blocks[stage] - 1});
  }
  return layers;
}

/// Returns the layers of a network whose blocks have a 1x1, a 3x3 and a 1x1 layer. The 3x3 layer
/// has the block's stride. The block's output has four times as many channels as the 3x3 layer.
std::vector<Layer> bottlenecks(Layer first, int64_t pixels, int64_t channels,
                               const std::vector<int64_t>& blocks) {
  std::vector<Layer> layers{first};
  int64_t in = channels;
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    const int64_t stride = stage == 0 ? 1 : 2, out = 4 * channels, others = blocks[stage] - 1;
    layers.push_back({pixels, in, channels, 1, 1, 1});
    layers.push_back({pixels, channels, channels, 3, stride, 1});
    layers.push_back({pixels, in, out, 1, stride, 1});  // the shortcut
    pixels /= stride;
    layers.push_back({pixels, channels, out, 1, 1, blocks[stage]});
    layers.push_back({pixels, out, channels, 1, 1, others});
    layers.push_back({pixels, channels, channels, 3, 1, others});
    in = out;
    channels *= 2;
  }
  return layers;
}

std::vector<Layer> layers_of(const std::string& net) {
  const Layer first{224, 3, 64, 7, 2, 1, true};
  if (net == "resnet18") return basic_blocks(first, 56, 64, {2, 2, 2, 2});
  if (net == "resnet50") return bottlenecks(first, 56, 64, {3, 4, 6, 3});
  return basic_blocks({32, 3, 16, 3, 1, 1, true}, 32, 16, {3, 3, 3});
}

struct Samples {
  int count;
  double seconds;  // per sample
};

double seconds_of(int64_t calls, const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) body();
  if (!default_device().is_cpu()) cuda::synchronize(default_device().index);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double measure(Samples samples, const std::function<void()>& body) {
  seconds_of(1, body);
  const auto calls = std::clamp(static_cast<int64_t>(samples.seconds / seconds_of(1, body)),
                                int64_t{1}, int64_t{1000});
  std::vector<double> seconds;
  for (int i = 0; i < samples.count; ++i) {
    seconds.push_back(seconds_of(calls, body) / static_cast<double>(calls));
  }
  return apps::median(seconds);
}

Tensor values(const Shape& shape, DType dtype) {
  std::vector<float> some(static_cast<size_t>(shape.elements()));
  RandomStream stream(1, "bench", 0);
  for (float& value : some) value = 3.4f * stream.uniform() - 1.7f;
  return ops::convert(Tensor::from<float>(shape, some), dtype);
}

std::string row(const Layer& l, int64_t batch, DType dtype, Samples samples) {
  const Conv2dOptions options{.stride = l.stride, .padding = l.padding()};
  const Tensor x = values({batch, l.pixels, l.pixels, l.channels}, dtype);
  const Tensor weight = values({l.out_channels, l.channels, l.kernel, l.kernel}, dtype);
  const Conv2dSizes s = conv2d_sizes(x.shape(), weight.shape(), options);
  const Tensor dy = values({batch, s.out_height, s.out_width, l.out_channels}, dtype);
  const Tensor y = Tensor::empty(dy.shape(), dtype), dweight = Tensor::empty(weight.shape(), dtype);
  const Tensor dx = l.is_first ? Tensor() : Tensor::empty(x.shape(), dtype);
  const Context context = current_context(default_device());
  const double forward = measure(
      samples, [&] { kernels::conv2d_forward(context, y, x, weight, Tensor(), options); });
  const double backward = measure(samples, [&] {
    kernels::conv2d_backward(context, dx, dweight, Tensor(), dy, x, weight, options);
  });
  const double multiplications =
      static_cast<double>(s.y_elements() * l.channels * l.kernel * l.kernel);
  return JsonObject()
      .add("pixels", l.pixels)
      .add("channels", l.channels)
      .add("out_channels", l.out_channels)
      .add("kernel", l.kernel)
      .add("stride", l.stride)
      .add("count", l.count)
      .add("is_first", l.is_first)
      .add("forward_ms", 1e3 * forward)
      .add("backward_ms", 1e3 * backward)
      .add("gflops_per_s", 2e-9 * multiplications * (l.is_first ? 2 : 3) / (forward + backward))
      .text();
}

}  // namespace

int main(int argc, char** argv) {
  std::string device = "cpu", net = "resnet20", precision = "f32";
  int64_t batch = 128;
  int threads = thread_count();
  bool tiny = false;
  CLI::App app("Times the convolutions of a ResNet");
  app.add_option("--device", device)->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  app.add_option("--net", net)->check(CLI::IsMember({"resnet20", "resnet18", "resnet50"}));
  app.add_option("--dtype", precision)->check(CLI::IsMember({"f32", "bf16", "f16"}));
  app.add_option("--batch", batch)->check(CLI::PositiveNumber);
  app.add_option("--threads", threads)->check(CLI::PositiveNumber);
  app.add_flag("--tiny", tiny, "two images, one call each");
  CLI11_PARSE(app, argc, argv);
  return apps::run_alone([&] {
    dist::choose_device(device);
    set_thread_count(threads);
    if (tiny) batch = 2;
    const DType dtype = precision == "f32"    ? DType::f32
                        : precision == "bf16" ? DType::bf16
                                              : DType::f16;
    std::vector<std::string> rows;
    for (const Layer& layer : layers_of(net)) {
      rows.push_back(row(layer, batch, dtype, tiny ? Samples{1, 0} : Samples{7, 0.05}));
    }
    fmt::print("{}\n", JsonObject()
                           .add("bench", "conv")
                           .add("device", default_device().is_cpu() ? "cpu" : "cuda")
                           .add("net", net)
                           .add("batch", batch)
                           .add("threads", threads)
                           .add("dtype", precision)
                           .raw("rows", fmt::format("[{}]", fmt::join(rows, ",")))
                           .text());
  });
}
