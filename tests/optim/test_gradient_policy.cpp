// Tests that GradientsInSums passes the calls of later micro-steps to the policy that it makes for
// them.
#include "optim/zero/gradient_policy.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "nn/layers.h"
#include "tests/support/catch.h"

namespace tessera::optim {
namespace {

// Records the micro-steps that begin() gets.
class Recorded : public GradientPolicy {
 public:
  explicit Recorded(std::vector<int64_t>& begun) : begun_(begun) {}
  void begin(const MicroStep& micro_step) override { begun_.push_back(micro_step.index); }
  Tensor open(int) override { return {}; }
  void sent(int, const dist::Work&) override {}
  void wait_for_all() override {}

 private:
  std::vector<int64_t>& begun_;
};

TEST_CASE("gradients in sums: the policy for later micro-steps begins with each of them") {
  nn::Linear layer(4, 4);
  const auto communicator = dist::single_communicator(default_device());
  std::vector<PlacedParameter> parameters;
  parameters.push_back({.named = layer.named_parameters().front()});
  const Partition partition(parameters, *communicator, {.bucket_bytes = 1024});
  std::vector<int64_t> begun;
  GradientsInSums gradients(partition, [&] { return std::make_unique<Recorded>(begun); });
  for (int step = 0; step < 2; ++step) {
    for (int64_t index = 0; index < 3; ++index) gradients.begin({.index = index, .count = 3});
  }
  CHECK(begun == std::vector<int64_t>{1, 2, 1, 2});
}

}  // namespace
}  // namespace tessera::optim
