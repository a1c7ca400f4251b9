// Collectives over MPI as pairwise transfers. The communication thread of mpi_communicator.cpp
// makes the calls. A call blocks this thread, and returns the number of bytes that this rank sent.
//
// MPI's own reductions are not used: they allocate fresh memory for every call, and touching fresh
// pages takes several times as long as the transfer (bench/communication.cpp). Here all scratch is
// allocated once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "dist/mpi/call_header.h"
#include "dist/mpi/channel.h"

namespace tessera::dist {

class Pairwise;

class MpiTransport {
 public:
  /// Connects all ranks of the job: duplicates MPI_COMM_WORLD. Collective.
  MpiTransport();
  /// Connects the ranks of `comm`, and takes ownership of `comm`. `group` names the ranks in
  /// errors.
  MpiTransport(MPI_Comm comm, const std::string& group);

  int rank() const { return channel_.rank; }
  int size() const { return channel_.size; }
  const std::string& group() const { return channel_.group; }
  /// Converts a rank of this transport to the rank's number among the ranks of the job.
  int job_rank(int rank_here) const { return channel_.job_rank(rank_here); }

  /// Makes a transfer in flight throw. May be called from any thread.
  void stop() { channel_.stop.store(true, std::memory_order_relaxed); }
  /// A transfer throws if nothing moves for `seconds` seconds. May be called from any thread.
  void set_timeout(double seconds);
  double timeout_s() const { return static_cast<double>(channel_.timeout_ns) / 1e9; }

  /// Sets the header of the next call. `call.number` is ignored, because this object counts the
  /// calls itself. The next call throws if another rank makes a different call.
  void begin(CallHeader call);
  /// Header bytes that this rank has sent since the last begin().
  int64_t header_bytes_sent() const { return header_bytes_sent_; }
  /// Keeps staging and headers until the process ends. To be called after a collective has thrown,
  /// because MPI may still read and write this memory.
  void keep_memory() const;

  /// Called with bytes [begin, begin + bytes) of the data that `source` sends to this rank.
  using Arrived =
      std::function<void(int source, int64_t begin, int64_t bytes, const std::byte* data)>;

  /// If rank() < contributors, sends piece r of `input` to every other rank r. Receives this rank's
  /// piece from all `sources`. For each chunk of the piece, calls `arrived` once per source, in the
  /// order of `sources`.
  int64_t exchange(const std::byte* input, int64_t piece_bytes, int contributors,
                   std::span<const int> sources, const Arrived& arrived);

  /// Sends `data` to all ranks. For each chunk, calls `arrived` once per source, in rank order,
  /// this rank included. `arrived` may overwrite bytes [begin, begin + bytes) of `data`.
  int64_t share(const std::byte* data, int64_t bytes, const Arrived& arrived);

  /// `data` is a chunk that `arrived` got from another rank. Returns the chunk as a tensor: a view
  /// of staging.
  Tensor staged(const std::byte* data, int64_t bytes, DType dtype) const;

  /// Sends piece r of `input` to rank r; the piece has send_bytes[r] bytes. `output` receives a
  /// piece from each rank, in rank order. The piece from rank r has receive_bytes[r] bytes.
  int64_t exchange_v(const std::byte* input, std::span<const int64_t> send_bytes, std::byte* output,
                     std::span<const int64_t> receive_bytes);
  int64_t all_gather_v(std::byte* buffer, std::span<const int64_t> bytes);

  /// One direction of a transfer; the peer is another rank, or -1 if nothing moves.
  struct End {
    int peer = -1;
    std::byte* data = nullptr;
    int64_t bytes = 0;
    DType dtype = DType::u8;
  };
  int64_t send_receive(const End& outgoing, const End& incoming);

  /// Returns a communicator of the ranks that give the same color, in the order of their keys;
  /// MPI_COMM_NULL for a negative color. Waits for all ranks.
  MPI_Comm split(int color, int key);

  int64_t all_gather(std::byte* buffer, int64_t piece_bytes);
  int64_t broadcast(std::byte* buffer, int64_t bytes, int root);
  int64_t barrier();

 private:
  int64_t staged_exchange(std::span<const std::byte* const> outgoing, const std::byte* own,
                          int64_t bytes, std::span<const int> sources, const Arrived& arrived);
  void open(const std::string& group);
  void expect(std::span<const int64_t> sent_bytes, std::span<const int64_t> received_bytes);
  void agree_once(Pairwise& transfers);
  int64_t finish(Pairwise& transfers);
  int next_peer(int i) const { return channel_.next_peer(i); }

  Channel channel_;
  std::shared_ptr<CallHeaders> headers_;  // of the running call
  int64_t calls_ = 0;                     // collectives so far
  std::vector<int64_t> transfers_with_;   // send_receive calls so far, by peer
  bool agreed_ = false;                   // true once the running call has exchanged headers
  int64_t header_bytes_sent_ = 0;
  int64_t chunk_bytes_ = 0;
  std::shared_ptr<Storage> staging_;  // memory for two chunks per other rank, then one for share()
};

}  // namespace tessera::dist
