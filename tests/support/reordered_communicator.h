// A communicator that delivers an exchange's contributions in the wrong order: descending by source
// rank. A test uses it to show that the order of summation changes the bits.
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
      Tensor chunk;
    };
    auto arrived = std::make_shared<std::vector<Arrived>>();
    auto keep = [arrived](int source, int64_t begin, const Tensor& chunk) {
      const Tensor copy = Tensor::empty(chunk.shape(), chunk.dtype());
      std::memcpy(copy.raw(), chunk.raw(), static_cast<size_t>(chunk.bytes()));
      arrived->push_back({source, begin, copy});
    };
    inner().exchange(input, contributors, keep, call);
    return inner().run([arrived, receive = std::move(receive)] {
      std::stable_sort(arrived->begin(), arrived->end(),
                       [](const Arrived& a, const Arrived& b) { return a.source > b.source; });
      for (const Arrived& a : *arrived) receive(a.source, a.begin, a.chunk);
    });
  }
};

}  // namespace tessera::test
