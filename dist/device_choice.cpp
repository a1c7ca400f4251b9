#include "dist/device_choice.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/cuda.h"

namespace tessera::dist {

namespace {

/// What a rank has, in the order of a piece of an all-gather.
struct Found {
  int64_t devices = 0;
  int64_t shares = 0;  // whether another rank of its host has the same GPU
};

std::vector<Found> gather(const World& world, const Found& own) {
  const Tensor all = Tensor::zeros({world.size, 2}, DType::i64, Device{});
  int64_t* const values = all.data<int64_t>();
  values[2 * world.rank] = own.devices;
  values[2 * world.rank + 1] = own.shares;
  world.communicator->all_gather(all, {}).wait();
  std::vector<Found> result;
  for (int r = 0; r < world.size; ++r) result.push_back({values[2 * r], values[2 * r + 1]});
  return result;
}

void check_one_of(const char* flag, const std::string& value,
                  const std::vector<std::string>& possible) {
  if (std::ranges::find(possible, value) != possible.end()) return;
  fail_input("{} is '{}', expected {}", flag, value, fmt::join(possible, ", "));
}

}  // namespace

void choose_devices(World& world, const DeviceOptions& options) {
  check_one_of("--device", options.device, {"cpu", "cuda", "auto"});
  check_one_of("--comm", options.comm, {"nccl", "mpi", "auto"});
  if (!(options.timeout_s > 0)) {
    fail_input("--comm-timeout is {}, expected a number of seconds above 0", options.timeout_s);
  }
  const bool may_be_cpu = options.device != "cuda";
  if (options.comm == "nccl" && options.device == "cpu") {
    fail_input("--comm nccl: NCCL connects GPUs, and --device is cpu");
  }
  if (options.device == "cpu") return;

  const int own = cuda::device_count();
  const std::vector<Found> all = gather(world, {own, world.local_size > own ? 1 : 0});
  const auto none = std::ranges::find_if(all, [](const Found& f) { return f.devices == 0; });
  if (none != all.end()) {
    if (may_be_cpu && options.comm != "nccl") return;
    fail_input("--device {}: rank {} has no usable GPU{}", options.device, none - all.begin(),
               own == 0 ? ": " + cuda::unusable() : "");
  }
  const auto sharing = std::ranges::find_if(all, [](const Found& f) { return f.shares != 0; });
  if (options.comm == "nccl" && sharing != all.end()) {
    fail_input("--comm nccl: rank {} shares its GPU with another rank, NCCL expects one for each; "
               "--comm mpi allows it", sharing - all.begin());
  }
  const int index = world.local_rank % own;
  cuda::use_device(index);
  set_default_device({DeviceType::cuda, index});
  const bool nccl = options.comm != "mpi" && sharing == all.end();
  world.communicator = nccl ? nccl_communicator(index, {.timeout_s = options.timeout_s})
                            : staged_communicator(world.communicator, index);
}

}  // namespace tessera::dist
