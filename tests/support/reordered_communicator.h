// A communicator that delivers an exchange's contributions in descending order of source: the order
// of summation that must not be used. For the test that proves that order matters.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/support/forwarding_communicator.h"

namespace tessera::test {

class ReorderedCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  dist::Work exchange(const Tensor& input, int contributors, Receive receive,
                      dist::Call call) override {
    struct Arrived {
      int source;
      int64_t begin;
      std::vector<float> values;
    };
    auto arrived = std::make_shared<std::vector<Arrived>>();
    auto keep = [arrived](int source, int64_t begin, const Tensor& chunk) {
      const auto values = chunk.values<float>();
      arrived->push_back({source, begin, {values.begin(), values.end()}});
    };
    inner().exchange(input, contributors, keep, call);
    return inner().run([arrived, receive = std::move(receive)] {
      std::stable_sort(arrived->begin(), arrived->end(),
                       [](const Arrived& a, const Arrived& b) { return a.source > b.source; });
      for (const Arrived& chunk : *arrived) {
        receive(chunk.source, chunk.begin,
                Tensor::from<float>({static_cast<int64_t>(chunk.values.size())}, chunk.values));
      }
    });
  }
};

}  // namespace tessera::test
