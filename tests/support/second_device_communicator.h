// Ranks that compute on a device that is not the host. Where tests run on CUDA that is the GPU;
// else the second device, cpu:1: what is long-lived is allocated there, and what is meant to be on
// the host shows in the host's ledger.
#pragma once

#include "dist/bootstrap.h"
#include "tests/support/devices.h"
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

/// The same job, computing on such a device.
inline dist::World beside_the_host(dist::World world) {
  if (on_cpu()) world.communicator = std::make_shared<SecondDeviceCommunicator>(world.communicator);
  return world;
}

}  // namespace tessera::test
