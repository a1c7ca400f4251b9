// Ranks that compute on another device than the host. If tests run on CUDA this is the GPU, else
// the second device, cpu:1: long-lived buffers are allocated there, so the host's memory ledger
// shows only what is meant to be on the host.
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
