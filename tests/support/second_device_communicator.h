// Gives ranks a device other than the host: the GPU if tests run on CUDA, else the second CPU
// device, cpu:1. Long-lived buffers are allocated on this device. Apart from activations and
// workspace, the host's memory ledger then shows only memory that is meant to be on the host.
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

/// Returns `world` with a communicator whose device is not the host.
inline dist::World beside_the_host(dist::World world) {
  if (on_cpu()) world.communicator = std::make_shared<SecondDeviceCommunicator>(world.communicator);
  return world;
}

}  // namespace tessera::test
