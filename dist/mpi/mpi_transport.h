// Collectives over MPI as pairwise transfers. Each call blocks its thread, the communication thread
// of mpi_communicator.cpp, and returns the bytes that this rank sent.
//
// Why not the library's reductions: they take fresh memory for every call, and touching fresh pages
// costs several times the transfer (bench/communication.cpp). Here all scratch is allocated once.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/tensor.h"

namespace tessera::dist {

class MpiTransport {
 public:
  /// Duplicates MPI_COMM_WORLD; collective.
  MpiTransport();

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Makes a transfer that is under way throw. From any thread.
  void stop() { stop_.store(true, std::memory_order_relaxed); }

  /// Bytes [begin, begin + bytes) of this rank's piece, as `source` sent them.
  using Arrived =
      std::function<void(int source, int64_t begin, int64_t bytes, const std::byte* data)>;

  /// Sends piece r of `input` to every other rank r, if rank() < contributors. Of this rank's own
  /// piece, each chunk is handed over once a source, in the order of `sources`.
  int64_t exchange(const std::byte* input, int64_t piece_bytes, int contributors,
                   std::span<const int> sources, const Arrived& arrived);

  /// Sends `data` to everybody and hands over everybody's in the order of ranks. `data` may be
  /// overwritten chunk by chunk, as chunks are handed over.
  int64_t share(const std::byte* data, int64_t bytes, const Arrived& arrived);

  /// What `arrived` was given of another rank, as a tensor.
  Tensor staged(const std::byte* data, int64_t bytes, DType dtype) const;

  int64_t all_gather(std::byte* buffer, int64_t piece_bytes);
  int64_t broadcast(std::byte* buffer, int64_t bytes, int root);
  int64_t barrier();

 private:
  int64_t staged_exchange(std::span<const std::byte* const> outgoing, const std::byte* own,
                          int64_t bytes, std::span<const int> sources, const Arrived& arrived);
  int next_peer(int i) const { return (rank_ + i) % size_; }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  int64_t chunk_bytes_ = 0;
  std::shared_ptr<Storage> staging_;  // two chunks a peer, then one chunk for `share`
  std::atomic<bool> stop_{false};
};

}  // namespace tessera::dist
