// Where the ranks of a job compute, and over what they communicate: chosen when the command line is
// known, for all ranks alike.
//
//   dist::World world = dist::init(argc, argv);
//   dist::choose_devices(world, {.device = "cuda", .comm = "nccl"});
//   // world.communicator is over NCCL, default_device() is this rank's GPU
#pragma once

#include <string>

#include "dist/bootstrap.h"

namespace tessera::dist {

struct DeviceOptions {
  std::string device = "auto";  // cpu, cuda, or auto: CUDA where every rank has a usable GPU
  std::string comm = "auto";    // nccl, mpi, or auto: NCCL where every rank has a GPU of its own
  /// Of a collective: Communicator::set_timeout, NcclOptions.
  double timeout_s = default_comm_timeout_s;
};

/// Throws InputError where a value is none of those above.
void check_device_options(const DeviceOptions& options);

/// A rank takes the GPU of its host with its local rank; where there are fewer GPUs than ranks they
/// share them in turn, which NCCL refuses and MPI does not. Sets the default device, and replaces
/// the world's communicator unless the job computes on CPUs. Collective; before any use of the
/// communicator's memory. Throws InputError, on every rank, for what cannot be had.
void choose_devices(World& world, const DeviceOptions& options);

/// `device`, as in DeviceOptions, for a program that is no rank of a job: it takes the first GPU.
void choose_device(const std::string& device);

/// As the flag has it: "cpu" or "cuda".
/// Threads of a rank: what was asked for, else OMP_NUM_THREADS, else its share of the host's cores.
int threads_per_rank(int asked, int ranks_on_this_host);

inline const char* device_type_name(Device device) { return device.is_cpu() ? "cpu" : "cuda"; }

}  // namespace tessera::dist
