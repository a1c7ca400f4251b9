// Controls of emulated CUDA for tests, beyond CUDA's own calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace emulated {

/// Sets the seed of two orders: the order in which the blocks of a launch run, and the order in
/// which the threads of a block run between two barriers.
///   0        ascending, the default
///   1        descending
///   others   shuffled anew for each launch, block and barrier; every run of a program repeats the
///            same shuffles
/// The environment variable TESSERA_EMULATED_ORDER sets the first seed of a process.
void set_order_seed(uint64_t seed);
uint64_t order_seed();

/// Sets the seed of deferred streams (emulated/deferred.h); with seed 0, streams are not deferred.
/// Deferred work runs at the latest when the host waits for it or when it has been queued for
/// `patience_ms`. This call first waits for all deferred work. If deferred work has failed, this
/// call instead discards the work that is left, and clears the failure. No other thread may use
/// CUDA during this call.
void set_stream_seed(uint64_t seed, int patience_ms = 20);

/// Sets the number of devices, 0 to 64. -1 stands for the number in the environment variable
/// TESSERA_EMULATED_DEVICES, or for 1 if the variable is not set.
void set_device_count(int count);

/// Sets the memory of each device in bytes; 16 GiB by default. Allocations beyond that fail.
void set_device_memory(size_t bytes);

/// Returns the bytes of device memory in use over all devices, including managed memory, pools and
/// graphs.
size_t device_bytes_in_use();

/// Returns the reason for the calling OS thread's latest failure; empty if no call has failed.
std::string last_failure();

/// While on, the emulated cuDNN proposes a convolution's algorithms in reverse order.
void reverse_convolution_proposals(bool on);

/// An NVTX range.
struct NvtxRange {
  std::string domain;
  std::string message;
  int64_t payload = -1;  // -1: none
  int depth = 0;         // the number of enclosing ranges on its thread
};
/// While on, ranges are recorded when they are closed.
void keep_nvtx_ranges(bool on);
/// Returns the ranges recorded so far, in order of closing, and clears the record.
std::vector<NvtxRange> take_nvtx_ranges();

/// While on, counts the operations that are given to streams outside of captures: kernels,
/// products, convolutions, copies, fills, host functions and graphs. Each counts as one. Calls of
/// NCCL count only while streams are deferred; the calls of a group on one communicator count as
/// one.
void count_launches(bool on);
/// Returns the counts so far and clears them. The keys are the NVTX ranges that were open on the
/// launching thread, from the outermost on: "backward/linear".
std::map<std::string, int64_t> take_launches();

}  // namespace emulated
