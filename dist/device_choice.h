// Chooses the device of each rank, and the communicator (NCCL or MPI) of the job. All ranks get the
// same kind of device and communicator. To be called after the command line has been read.
//
//   dist::World world = dist::init(argc, argv);
//   dist::choose_devices(world, {.device = "cuda", .comm = "nccl"});
//   // world.communicator is over NCCL, default_device() is this rank's GPU
#pragma once

#include <string>

#include "dist/bootstrap.h"

namespace tessera::dist {

struct DeviceOptions {
  std::string device = "auto";  // cpu, cuda, or auto: CUDA if every rank has a usable GPU
  /// nccl, mpi, or auto: NCCL if the job computes on GPUs and every rank has a GPU of its own.
  std::string comm = "auto";
  /// Time limit of a collective: see Communicator::set_timeout and NcclOptions.
  double timeout_s = default_comm_timeout_s;
};

/// Throws InputError if an option has a value that is not allowed.
void check_device_options(const DeviceOptions& options);

/// In a job on GPUs, a rank takes the GPU whose index is its local rank, modulo the number of GPUs
/// that the rank sees. So ranks share GPUs if all ranks of a host see the same GPUs and there are
/// fewer GPUs than ranks. Sharing works over MPI but not over NCCL. Ranks compare the UUIDs of
/// their GPUs to find out whether they share any.
/// Sets the default device, and replaces the world's communicator unless the job computes on CPUs.
/// Collective; call it before anything is allocated with the communicator. Throws InputError on
/// every rank if the devices or the communicator asked for are not available.
void choose_devices(World& world, const DeviceOptions& options);

/// Sets the default device of a program that is not a rank of a job. `device` is as in
/// DeviceOptions; "cuda" is the first GPU.
void choose_device(const std::string& device);

/// Returns the number of threads of a rank: `asked` if above 0, else OMP_NUM_THREADS, else the
/// rank's share of the host's cores. Throws InputError if OMP_NUM_THREADS is used and is not from 1
/// to 4096. If it is a list, its first number is used.
int threads_per_rank(int asked, int ranks_on_this_host);

/// The device's type as the flag --device names it: "cpu" or "cuda".
inline const char* device_type_name(Device device) { return device.is_cpu() ? "cpu" : "cuda"; }

}  // namespace tessera::dist
