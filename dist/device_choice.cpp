#include "dist/device_choice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/cuda.h"
#include "core/text/number_text.h"
#include "dist/agreement.h"
#include "dist/machine.h"

namespace tessera::dist {

namespace {

constexpr int most_threads = 4096;  // per rank

// Parses OMP_NUM_THREADS: a number of threads, or a list with a number for each level of nested
// parallelism. Returns the first number, or 0 if the text is invalid. The caller refuses invalid
// text, because libgomp would ignore the text and use all cores, and the number of threads affects
// the bits of a run's results.
int64_t first_of_list(const std::string& text) {
  std::istringstream list(text);
  int64_t first = 0;
  for (char separator = ','; separator == ',';) {
    int64_t threads = 0;
    if (!(list >> threads) || threads < 1) return 0;
    if (first == 0) first = threads;
    if (!(list >> separator)) return first;
  }
  return 0;
}

/// Each rank sends these facts about its host and GPU to all ranks. Its piece of the all-gather has
/// the members in this order.
struct Found {
  int64_t devices = 0;               // number of GPUs that the rank sees
  int64_t ranks = 0;                 // number of ranks on the same host
  std::array<int64_t, 2> uuid = {};  // of the rank's GPU, if it has one
};

std::vector<Found> gather(const World& world, const Found& own) {
  const Tensor all = Tensor::zeros({world.size, 4}, DType::i64, Device{});
  const auto values = all.values<int64_t>();
  std::ranges::copy(std::array{own.devices, own.ranks, own.uuid[0], own.uuid[1]},
                    values.begin() + int64_t{4} * world.rank);
  world.communicator->all_gather(all, {}).wait();
  std::vector<Found> result;
  for (auto piece = values.begin(); piece != values.end(); piece += 4) {
    result.push_back({piece[0], piece[1], {piece[2], piece[3]}});
  }
  return result;
}

/// Returns the text for World::difference, the same text on every rank. Collective.
std::string difference_of(Communicator& communicator, int device) {
  if (communicator.size() == 1) return "";
  std::vector<Machine> machines;
  for (const std::string& text : gather_text(communicator, own_machine(device).text())) {
    machines.push_back(Machine::of_text(text));
  }
  return broadcast_text(communicator, first_difference(machines));
}

void check_one_of(const char* flag, const std::string& value,
                  const std::vector<std::string>& possible) {
  if (std::ranges::find(possible, value) != possible.end()) return;
  fail_input("{} is '{}', expected {}", flag, value, fmt::join(possible, ", "));
}

}  // namespace

void check_device_options(const DeviceOptions& options) {
  check_one_of("--device", options.device, {"cpu", "cuda", "auto"});
  check_one_of("--comm", options.comm, {"nccl", "mpi", "auto"});
  if (!(options.timeout_s > 0 && std::isfinite(options.timeout_s))) {
    fail_input("--comm-timeout is {}, expected a number of seconds above 0", options.timeout_s);
  }
}

void choose_devices(World& world, const DeviceOptions& options) {
  check_device_options(options);
  world.comm_timeout_s = options.timeout_s;
  world.communicator->set_timeout(options.timeout_s);
  const bool may_be_cpu = options.device != "cuda";
  if (options.comm == "nccl" && options.device == "cpu") {
    fail_input("--comm nccl: NCCL connects only GPUs, but --device is cpu");
  }
  if (options.device == "cpu") return;

  const int own = cuda::device_count();
  const int index = own == 0 ? 0 : world.local_rank % own;
  const std::vector<Found> all =
      gather(world, {.devices = own,
                     .ranks = world.local_size,
                     .uuid = own == 0 ? std::array<int64_t, 2>{} : cuda::device_uuid(index)});
  const auto none = std::ranges::find_if(all, [](const Found& f) { return f.devices == 0; });
  if (none != all.end()) {
    if (may_be_cpu && options.comm != "nccl") return;
    // The reason comes from the rank that the error names, which is the first one without a GPU.
    const std::string why = first_reason(own == 0 ? cuda::unusable() : "", *world.communicator);
    fail_input("{}: rank {} has no usable GPU: {}",
               may_be_cpu ? "--comm nccl" : "--device " + options.device, none - all.begin(), why);
  }
  // Equal UUIDs show that ranks share a GPU. Device indices do not show this, because the launcher
  // may set a different CUDA_VISIBLE_DEVICES for each rank.
  const auto sharing = std::ranges::find_if(
      all, [&](const Found& f) { return std::ranges::count(all, f.uuid, &Found::uuid) > 1; });
  if (options.comm == "nccl" && sharing != all.end()) {
    fail_input(
        "--comm nccl: rank {} shares its GPU with another rank: its host has {}, and the rank sees "
        "{}, expected a GPU for each rank; start fewer ranks on that host, show the ranks more "
        "GPUs (CUDA_VISIBLE_DEVICES), or use --comm mpi, with which ranks may share a GPU",
        sharing - all.begin(), counted(sharing->ranks, "rank"), counted(sharing->devices, "GPU"));
  }
  cuda::use_device(index);
  set_default_device({DeviceType::cuda, index});
  const bool nccl = options.comm != "mpi" && sharing == all.end();
  world.difference = difference_of(*world.communicator, index);
  world.communicator = nccl ? nccl_communicator(index, {.timeout_s = options.timeout_s})
                            : staged_communicator(world.communicator, index);
}

void choose_device(const std::string& device) {
  check_one_of("--device", device, {"cpu", "cuda", "auto"});
  if (device == "cpu") return;
  if (cuda::device_count() > 0) {
    set_default_device({DeviceType::cuda, 0});
  } else if (device == "cuda") {
    fail_input("--device cuda: there is no usable GPU: {}", cuda::unusable());
  }
}

int threads_per_rank(int asked, int ranks_on_this_host) {
  if (asked > 0) return asked;
  if (const char* const variable = std::getenv("OMP_NUM_THREADS")) {
    const int64_t threads = first_of_list(variable);
    // libgomp keeps a team's data on the stack. A team of many more threads than most_threads would
    // overflow the stack.
    if (threads < 1 || threads > most_threads) {
      fail_input("OMP_NUM_THREADS is '{}', expected a whole number from 1 to {}", variable,
                 most_threads);
    }
    return static_cast<int>(threads);
  }
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(1, ranks_on_this_host));
}

}  // namespace tessera::dist
