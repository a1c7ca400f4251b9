// A communicator of ranks that compute on the second device, cpu:1: what is long-lived is allocated
// there, and what is meant to be on the host shows in the host's ledger.
#pragma once

#include "tests/support/forwarding_communicator.h"

namespace tessera::test {

inline constexpr Device second_device{DeviceType::cpu, 1};

class SecondDeviceCommunicator : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  Device device() const override { return second_device; }
  std::shared_ptr<Storage> allocate(int64_t bytes, Category category) override {
    return tessera::allocate(bytes, category, second_device);
  }
};

}  // namespace tessera::test
