// Transfers between this rank and others, cut into chunks that MPI moves in the background. Both
// sides of a pair derive the chunks from the same number of bytes, so nothing is negotiated.
//
//   Pairwise transfers(comm, tag, stop);
//   transfers.send(1, data, bytes, chunk);                      // straight from `data`
//   const int stream = transfers.receive_staged(1, slots, bytes, chunk);
//   transfers.start();
//   for (int64_t c = 0; c < chunks; ++c) {
//     use(transfers.await(stream, c));
//     transfers.release(stream, c);                             // its slot takes chunk c + 2
//   }
//   transfers.finish();
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dist/backoff.h"

namespace tessera::dist {

class Pairwise {
 public:
  /// A transfer throws soon after `stop` has become true.
  Pairwise(MPI_Comm comm, int tag, const std::atomic<bool>& stop)
      : comm_(comm), tag_(tag), stop_(stop) {}
  ~Pairwise();
  Pairwise(const Pairwise&) = delete;
  Pairwise& operator=(const Pairwise&) = delete;

  void send(int peer, const std::byte* data, int64_t bytes, int64_t chunk);
  void receive(int peer, std::byte* data, int64_t bytes, int64_t chunk);
  /// Receives through two slots of `chunk` bytes each; returns a number for await and release.
  int receive_staged(int peer, std::byte* slots, int64_t bytes, int64_t chunk);

  /// Posts the first chunks.
  void start();
  /// Waits until the peer has sent the chunk; the chunks of a stream are awaited in order.
  const std::byte* await(int stream, int64_t chunk);
  void release(int stream, int64_t chunk);
  /// Waits until everything has been sent and received.
  void finish();

  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  enum class Direction : uint8_t { send, receive, receive_staged };
  struct Stream {
    Direction direction;
    int peer;
    std::byte* data;
    int64_t bytes;
    int64_t chunk_bytes;
    size_t first_request = 0;  // one request a slot
    int64_t slots = 0;
    int64_t posted = 0;  // chunks so far
    int64_t chunks() const { return (bytes + chunk_bytes - 1) / chunk_bytes; }
  };

  int add(Stream stream);
  void post(size_t index, int64_t slot);
  void start(Direction direction);
  void progress();
  bool poll();
  void completed(size_t request);

  MPI_Comm comm_;
  int tag_;
  const std::atomic<bool>& stop_;
  Backoff backoff_;
  std::vector<Stream> streams_;
  std::vector<MPI_Request> requests_;
  std::vector<size_t> stream_of_;   // of a request
  std::vector<uint8_t> arrived_;    // whether a staged request's chunk is there and not released
  std::vector<int> indices_;        // what MPI_Testsome found
  int64_t active_ = 0;              // requests posted and not completed
  int64_t bytes_sent_ = 0;
};

}  // namespace tessera::dist
