#include "nn/convolution.h"

#include <set>
#include <string>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/recompute.h"
#include "nn/layers.h"
#include "nn/residual.h"
#include "nn/weights_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

Tensor counted(const Shape& shape) {
  std::vector<float> values;
  for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(static_cast<float>(i));
  return Tensor::from(shape, values);
}

std::vector<float> values_of(const Tensor& x) {
  return {x.values<float>().begin(), x.values<float>().end()};
}

TEST_CASE("Conv2d has torch's parameters and adds its bias") {
  nn::Conv2d layer(2, 4, {3, 1}, {.convolution = {.padding = {1, 0}, .groups = 2}});
  CHECK(layer.weight.shape() == Shape{4, 1, 3, 1});
  CHECK(layer.bias.shape() == Shape{4});
  nn::materialize(layer);
  const Tensor weight = layer.weight.tensor();
  std::fill_n(weight.data<float>(), 12, 1.0f);
  layer.bias.tensor().data<float>()[3] = 10;
  const Tensor y = layer(Tensor::full({1, 2, 2, 2}, 1));
  CHECK(y.shape() == Shape{1, 2, 2, 4});
  CHECK(values_of(y.rows(0, 1)) ==
        std::vector<float>{2, 2, 2, 12, 2, 2, 2, 12, 2, 2, 2, 12, 2, 2, 2, 12});
  CHECK_THROWS_AS(nn::Conv2d(3, 4, 3, {.convolution = {.groups = 2}}), Error);
  CHECK_THROWS_AS(nn::Conv2d(0, 4, 3), Error);
}

TEST_CASE("pooling, flatten and ReLU work as modules") {
  const Tensor x = counted({1, 2, 2, 2});  // channel 0: 0 2 4 6, channel 1: 1 3 5 7
  nn::MaxPool2d max({.kernel = 2, .stride = 2});
  nn::AvgPool2d mean({.kernel = 2, .stride = 2});
  nn::GlobalAvgPool global;
  nn::Flatten flatten;
  nn::Relu relu;
  CHECK(values_of(max(x)) == std::vector<float>{6, 7});
  CHECK(values_of(mean(x)) == std::vector<float>{3, 4});
  CHECK(global(x).shape() == Shape{1, 2});
  CHECK(values_of(global(x)) == std::vector<float>{3, 4});
  CHECK(values_of(flatten(x)) == std::vector<float>{0, 2, 4, 6, 1, 3, 5, 7});
  CHECK(values_of(relu(Tensor::from<float>({2}, {-1, 2}))) == std::vector<float>{0, 2});
}

TEST_CASE("BatchNorm2d takes a tenth of each batch into its running statistics") {
  nn::BatchNorm2d norm(1);
  nn::materialize(norm);
  const Tensor x = Tensor::from<float>({4, 1, 1, 1}, {0, 2, 4, 6});  // mean 3, variance 20 / 3
  norm(x);
  const auto statistics = norm.named_statistics()[0].statistics;
  CHECK(statistics->mean.item() == Catch::Approx(0.3));
  CHECK(statistics->variance.item() == Catch::Approx(0.9 + 2.0 / 3));
  norm.eval();
  const float scale = 1 / std::sqrt(statistics->variance.item() + 1e-5f);
  CHECK(norm(x).values<float>()[3] == Catch::Approx((6 - 0.3f) * scale));
  CHECK(statistics->mean.item() == Catch::Approx(0.3));  // evaluation changes nothing
  CHECK_THROWS_AS(nn::BatchNorm2d(0), Error);
  CHECK_THROWS_AS(nn::BatchNorm2d(3, {.momentum = 2}), Error);
}

TEST_CASE("a saved batch norm has torch's names, with and without a parent") {
  const TemporaryFolder folder;
  nn::Sequential parent;
  parent.emplace<nn::BatchNorm2d>(2);
  nn::BatchNorm2d alone(2);
  const auto saved_names = [&](nn::Module& model) {
    const std::string path = folder.path("w.safetensors");
    nn::materialize(model);
    nn::save_weights(path, model);
    nn::load_weights(path, model);
    std::set<std::string> names;
    const nn::SafetensorsReader file(path);
    for (const nn::SafetensorsEntry& entry : file.entries()) names.insert(entry.name);
    return names;
  };
  CHECK(saved_names(alone) == std::set<std::string>{"bias", "num_batches_tracked", "running_mean",
                                                    "running_var", "weight"});
  CHECK(saved_names(parent) == std::set<std::string>{"0.bias", "0.num_batches_tracked",
                                                     "0.running_mean", "0.running_var",
                                                     "0.weight"});
}

TEST_CASE("weights that are refused leave a model without memory as it was") {
  const TemporaryFolder folder;
  const std::string path = folder.path("w.safetensors");
  nn::BatchNorm2d norm(2);
  nn::materialize(norm);
  norm.named_statistics()[0].statistics->variance.copy_from(Tensor::full({2}, -1));
  nn::save_weights(path, norm);
  nn::BatchNorm2d other(2);
  CHECK_THROWS_AS(nn::load_weights(path, other), InputError);
  CHECK_FALSE(other.named_parameters()[0].parameter.tensor().allocated());

  nn::Linear linear(2, 2);
  nn::materialize(linear);
  linear.named_parameters()[0].parameter.tensor().copy_from(Tensor::full({2, 2}, 1e6f));
  nn::save_weights(path, linear);
  nn::Linear half(2, 2);
  half.to(DType::f16);
  CHECK_THROWS_AS(nn::load_weights(path, half), InputError);
  CHECK_FALSE(half.named_parameters()[0].parameter.tensor().allocated());
}

TEST_CASE("BatchNorm2d in a recomputed segment observes each batch once") {
  using Tensors = std::vector<Tensor>;
  nn::BatchNorm2d norm(1);
  nn::materialize(norm);
  const auto statistics = norm.named_statistics()[0].statistics;
  const Tensor x = Tensor::from<float>({4, 1, 1, 1}, {0, 2, 4, 6});  // mean 3
  int runs = 0;
  const Segment segment = [&](const Tensors& in) {
    ++runs;
    return Tensors{norm(in[0])};
  };
  const Segment nested = [&](const Tensors& in) { return recompute("inner", {in[0]}, segment); };
  const bool is_nested = GENERATE(false, true);
  const Tensor y = recompute("outer", {x}, is_nested ? nested : segment)[0];
  CHECK(statistics->mean.item() == Catch::Approx(0.3));
  backward(ops::mean(ops::mul(y, y)));
  CHECK(runs == (is_nested ? 3 : 2));
  CHECK(statistics->mean.item() == Catch::Approx(0.3));
  CHECK_FALSE(segment_is_repeated());
  norm(x);
  CHECK(statistics->mean.item() == Catch::Approx(0.9 * 0.3 + 0.3));
}

TEST_CASE("a residual block whose convolutions are zero passes its input through ReLU") {
  nn::BasicBlock block(2, 2, 1);
  nn::materialize(block);
  for (const nn::NamedParameter& named : block.named_parameters()) {
    if (named.parameter.shape().rank() != 4) continue;
    const Tensor weight = named.parameter.tensor();
    std::fill_n(weight.data<float>(), weight.elements(), 0.0f);
  }
  const Tensor x = Tensor::from<float>({1, 1, 2, 2}, {-1, 2, 3, -4});
  CHECK(values_of(block(x)) == std::vector<float>{0, 2, 3, 0});
  nn::Bottleneck wider(2, 2, 2);
  nn::materialize(wider);
  CHECK(wider(counted({1, 4, 4, 2})).shape() == Shape{1, 2, 2, 8});
}

}  // namespace
}  // namespace tessera::test
