// Transfers between this rank and others, cut into chunks that MPI moves in the background. Both
// sides of a pair compute the chunks from the same number of bytes, so nothing is negotiated. This
// rank receives data from a peer only after the peer's header has shown that both ranks make the
// same call.
//
//   Pairwise transfers(channel, headers);
//   transfers.exchange_headers();
//   transfers.send(1, data, bytes, chunk);                      // straight from `data`
//   const int stream = transfers.receive_staged(1, slots, bytes, chunk);
//   transfers.start();
//   for (int64_t c = 0; c < chunks; ++c) {
//     use(transfers.await(stream, c));
//     transfers.release(stream, c);                             // frees the slot for chunk c + 2
//   }
//   transfers.finish();
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "dist/backoff.h"
#include "dist/mpi/call_header.h"
#include "dist/mpi/channel.h"

namespace tessera::dist {

class Pairwise {
 public:
  /// Creates one round of transfers of a call, which may have several rounds. `headers` describes
  /// the call, and receives the peers' headers. Functions that wait throw soon after channel.stop
  /// is set. They also throw if no data has moved for the channel's timeout.
  Pairwise(const Channel& channel, CallHeaders& headers);
  /// If finish() has not returned, MPI may read and write the memory of the transfers until the
  /// process ends. The caller must keep this memory (dist/mpi/kept_memory.h).
  ~Pairwise();
  Pairwise(const Pairwise&) = delete;
  Pairwise& operator=(const Pairwise&) = delete;

  /// Adds an exchange of headers with these peers, or with all peers; start() begins it. Only the
  /// first round of a call exchanges headers. If one of the peers makes a different call, functions
  /// that wait throw.
  void exchange_headers(std::span<const int> peers);
  void exchange_headers();

  void send(int peer, const std::byte* data, int64_t bytes, int64_t chunk);
  /// There must be at most one receive per peer.
  void receive(int peer, std::byte* data, int64_t bytes, int64_t chunk);
  /// Receives chunks into two slots of `chunk` bytes each, the first at `slots`. Returns the
  /// stream's index, for await() and release().
  int receive_staged(int peer, std::byte* slots, int64_t bytes, int64_t chunk);

  /// Posts the first chunks.
  void start();
  /// Waits until the chunk has arrived, and returns its address. The chunks of a stream must be
  /// awaited in order.
  const std::byte* await(int stream, int64_t chunk);
  void release(int stream, int64_t chunk);
  /// Waits until everything has been sent and received.
  void finish();

  int64_t bytes_sent() const { return bytes_sent_; }  // without headers
  int64_t header_bytes_sent() const { return header_bytes_sent_; }

 private:
  enum class Direction : uint8_t { send_header, receive_header, send, receive, receive_staged };
  /// A header or a buffer that moves to or from one peer, in chunks.
  struct Stream {
    Direction direction;
    int peer;
    std::byte* data;
    int64_t bytes;
    int64_t chunk_bytes;
    size_t first_request = 0;  // index of the stream's first request; one request for each slot
    int64_t slots = 0;         // number of chunks that may be in flight
    int64_t posted = 0;  // number of chunks posted so far
    int64_t chunks() const { return (bytes + chunk_bytes - 1) / chunk_bytes; }
    bool receives_data() const {
      return direction == Direction::receive || direction == Direction::receive_staged;
    }
  };

  int add(Stream stream);
  int add_receive(const Stream& stream);
  void post(size_t index, int64_t slot);
  void start(Direction direction);
  void agree(int peer);
  void progress();
  bool poll();
  void completed(size_t request);
  [[noreturn]] void fail_stalled() const;

  const Channel& channel_;
  Backoff backoff_;
  CallHeaders& headers_;
  std::vector<uint8_t> agreed_;   // by peer: 0 while this rank waits for the peer's header
  std::vector<int> stream_from_;  // the stream that receives from a peer; -1: none
  std::vector<Stream> streams_;
  std::vector<MPI_Request> requests_;
  std::vector<size_t> stream_of_;   // by request: its stream
  std::vector<uint8_t> arrived_;    // by request: 1 while a staged chunk is in the request's slot
  std::vector<int> indices_;        // requests that MPI_Testsome found completed
  int64_t active_ = 0;              // requests posted and not completed
  int64_t bytes_sent_ = 0;
  int64_t header_bytes_sent_ = 0;
};

}  // namespace tessera::dist
