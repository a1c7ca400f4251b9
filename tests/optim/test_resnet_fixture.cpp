// Compares five SGD steps of tiny ResNets with PyTorch's, from equal weights and images
// (tests/fixtures/make_resnet_fixture.py): losses, gradients, weights, running statistics, and the
// logits of evaluation. The reference is PyTorch's float64 run; the tolerances are several times
// the distance of PyTorch's float32 run from the float64 run.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/autograd.h"
#include "core/image_ops.h"
#include "dist/bootstrap.h"
#include "models/image/resnet.h"
#include "nn/safetensors.h"
#include "optim/zero_optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

constexpr int64_t steps = 5;
constexpr int64_t batch = 6;
constexpr int64_t micro = 3;

struct Subject {
  std::string name;
  models::ResNetConfig config;
  double tolerance;
};

const Subject subjects[] = {
    {"basic",
     {.blocks = {1, 1},
      .width = 8,
      .small_images = true,
      .sizes = {.side = 8, .channels = 3, .classes = 5}},
     5e-6},
    {"bottleneck",
     {.blocks = {1, 1},
      .width = 4,
      .bottleneck = true,
      .sizes = {.side = 20, .channels = 3, .classes = 5}},
     2e-5},
};

class Fixture {
 public:
  explicit Fixture(const std::string& name) : file_(fixture("resnet_" + name + ".safetensors")) {}

  std::vector<float> floats(const std::string& name) const {
    const auto& entry = file_.entry(name);
    std::vector<float> values(static_cast<size_t>(entry.elements()));
    file_.read<float>(entry, 0, values);
    return values;
  }

  Tensor images(int64_t step, int64_t begin, int64_t count) const {
    const auto& entry = file_.entry("images");
    const Tensor values =
        Tensor::empty({count, entry.shape[2], entry.shape[3], entry.shape[4]});
    const int64_t each = values.elements() / count;
    file_.read<float>(entry, (step * batch + begin) * each, values.values<float>());
    return values;
  }
  Tensor labels(int64_t step, int64_t begin, int64_t count) const {
    const Tensor values = Tensor::empty({count}, DType::i32);
    file_.read<int32_t>(file_.entry("labels"), step * batch + begin, values.values<int32_t>());
    return values;
  }

  optim::ParameterSource weights() const {
    return [this](const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
      const auto values = floats("init/" + named.name);
      REQUIRE(static_cast<int64_t>(values.size()) == named.parameter.elements());
      std::copy_n(values.begin() + begin, out.size(), out.begin());
    };
  }

  double difference(const std::string& name, std::span<const float> values) const {
    const auto expected = floats(name);
    REQUIRE(expected.size() == values.size());
    double largest = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      largest = larger_difference(largest, std::fabs(double{values[i]} - expected[i]));
    }
    return largest;
  }

 private:
  nn::SafetensorsReader file_;
};

optim::ZeroOptions options_of(int stage) {
  return {.stage = stage,
          .bucket_bytes = 2048,
          .group_of =
              [](const nn::NamedParameter& named) {
                return named.parameter.shape().rank() >= 2 ? 0 : 1;
              },
          .groups = {{.weight_decay = 0.0f}}};
}

Tensor loss_of(models::ResNet& model, const Fixture& file, int64_t step, int64_t begin) {
  return ops::smoothed_cross_entropy(model(file.images(step, begin, micro)),
                                     file.labels(step, begin, micro), 0.1f);
}

TEST_CASE("five SGD steps of a tiny ResNet equal PyTorch's") {
  for (const Subject& subject : subjects) {
    for (const int stage : {0, 2, 3}) {
      CAPTURE(subject.name, stage);
      const Fixture file(subject.name);
      models::ResNet model(subject.config);
      const optim::Sgd rule{
          .learning_rate = 0.05f, .momentum = 0.9f, .weight_decay = 0.01f, .nesterov = true};
      optim::ZeroOptimizer optimizer(
          model, rule, {.communicator = dist::single_communicator(default_device())},
          options_of(stage));
      optimizer.set_parameters(file.weights());
      const auto losses = file.floats("loss64");
      for (int64_t step = 0; step < steps; ++step) {
        for (const auto& part : optimizer.micro_batches(step, {.global = batch, .micro = micro})) {
          optimizer.backward(loss_of(model, file, step, part.first_sample));
        }
        for (const nn::NamedParameter& named : model.named_parameters()) {
          if (step > 0) break;
          INFO(named.name);
          const Tensor gradient = optimizer.gradient(named.name);
          CHECK(file.difference("grad064/" + named.name, gradient.values<float>()) <
                subject.tolerance);
        }
        CHECK(std::fabs(optimizer.step().loss - losses[static_cast<size_t>(step)]) <
              subject.tolerance);
      }
      optimizer.for_each_parameter(
          [&](const nn::NamedParameter& named, std::span<const float> values) {
            INFO(named.name);
            CHECK(file.difference("final64/" + named.name, values) < subject.tolerance);
          });
      for (const auto& [name, statistics] : model.named_statistics()) {
        INFO(name);
        CHECK(file.difference("final64/" + name + ".running_mean",
                              statistics->mean.values<float>()) < subject.tolerance);
        CHECK(file.difference("final64/" + name + ".running_var",
                              statistics->variance.values<float>()) < 10 * subject.tolerance);
      }
      model.eval();
      const NoGrad no_grad;
      const Tensor logits = model(file.images(0, 0, batch));
      CHECK(file.difference("logits64", logits.values<float>()) < subject.tolerance);
    }
  }
}

TEST_CASE("the fixture's steps move weights and statistics by far more than the tolerance") {
  for (const Subject& subject : subjects) {
    const Fixture file(subject.name);
    const models::ResNet model(subject.config);
    for (const nn::NamedParameter& named : model.named_parameters()) {
      INFO(subject.name << " " << named.name);
      CHECK(file.difference("final64/" + named.name, file.floats("init/" + named.name)) >
            100 * subject.tolerance);
    }
    for (const auto& [name, statistics] : model.named_statistics()) {
      INFO(subject.name << " " << name);
      CHECK(file.difference("final64/" + name + ".running_var",
                            file.floats("init/" + name + ".running_var")) >
            100 * subject.tolerance);
    }
  }
}

}  // namespace
}  // namespace tessera::test
