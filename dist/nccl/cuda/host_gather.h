// Gathers host values, and lets ranks wait for each other, in a job that communicates over NCCL.
// This is done over MPI, so that no GPU has to wait.
#pragma once

#include <mpi.h>

#include <limits>
#include <string>

#include "dist/backoff.h"
#include "dist/communicator.h"
#include "dist/host_work.h"
#include "dist/mpi/kept_memory.h"
#include "dist/mpi/mpi_check.h"
#include "dist/stalled.h"

namespace tessera::dist {

class HostGather {
 public:
  /// Connects all ranks of MPI_COMM_WORLD, or this rank alone if MPI is not initialised.
  HostGather() {
    int initialized = 0;
    TESSERA_MPI(MPI_Initialized(&initialized));
    if (!initialized) return;
    // The MPI communicator is never freed: MPI_Comm_free is a collective, but a destructor may run
    // on one rank alone.
    MPI_Comm comm = MPI_COMM_NULL;
    TESSERA_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm));
    open(comm);
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Returns a HostGather of the ranks that give the same color, in the order of their keys; with a
  /// negative color the result must not be used. Collective.
  HostGather split(int color, int key) const {
    HostGather group(*this);
    if (comm_ == MPI_COMM_NULL) return group;
    MPI_Comm comm = MPI_COMM_NULL;
    TESSERA_MPI(MPI_Comm_split(comm_, color < 0 ? MPI_UNDEFINED : color, key, &comm));
    if (comm != MPI_COMM_NULL) group.open(comm);
    return group;
  }

  /// Throws if a piece of `buffer` has 2 GiB or more. all_gather refuses such a buffer.
  void check_piece(const Tensor& buffer, Call call) const {
    const int64_t piece_bytes = buffer.bytes() / size_;
    TESSERA_CHECK(piece_bytes <= std::numeric_limits<int>::max(),
                  "all_gather of {}: a piece of {} bytes in host memory, expected less than 2 GiB",
                  call.text(), piece_bytes);
  }

  /// Gathers every rank's piece of `buffer`, which is in host memory, in place. The calling thread
  /// waits for the other ranks. Throws as check_piece does. Throws StalledError if the call has not
  /// finished in `timeout_s` seconds.
  void all_gather(const Tensor& buffer, Call call, double timeout_s) const {
    check_piece(buffer, call);
    const auto piece_bytes = static_cast<int>(buffer.bytes() / size_);
    try {
      wait_in(wait_name(Collective::all_gather), call,
              [&] { gather_pieces(buffer, piece_bytes, call, timeout_s); });
    } catch (...) {
      keep_until_exit(buffer.storage());  // MPI may still read and write the buffer
      throw;
    }
  }

  /// Returns when every rank has called barrier(). Throws StalledError if a rank has not called
  /// barrier() in `timeout_s` seconds. `name` is the name of this call in the error.
  void barrier(const std::string& name, double timeout_s) const {
    MPI_Request request = MPI_REQUEST_NULL;
    TESSERA_MPI(MPI_Ibarrier(comm_, &request));
    if (!done_within(timeout_s, request)) throw stalled(name, timeout_s);
  }

 private:
  void gather_pieces(const Tensor& buffer, int piece_bytes, Call call, double timeout_s) const {
    MPI_Request request = MPI_REQUEST_NULL;
    TESSERA_MPI(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer.raw(), piece_bytes,
                               MPI_BYTE, comm_, &request));
    if (!done_within(timeout_s, request)) throw stalled("all_gather of " + call.text(), timeout_s);
  }

  static bool done_within(double timeout_s, MPI_Request request) {
    Backoff backoff;
    for (int done = 0;; backoff.pause()) {
      TESSERA_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      if (done != 0) return true;
      if (static_cast<double>(backoff.slept_ns()) > 1e9 * timeout_s) return false;
    }
  }

  static StalledError stalled(const std::string& name, double timeout_s) {
    return {fmt::format("{} has not finished in {} s (--comm-timeout): a rank has not made this "
                        "call (stopped, hanging, or computing)",
                        name, timeout_s),
            {}};
  }

  void open(MPI_Comm comm) {
    comm_ = comm;
    TESSERA_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
    TESSERA_MPI(MPI_Comm_rank(comm_, &rank_));
    TESSERA_MPI(MPI_Comm_size(comm_, &size_));
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace tessera::dist
