#include "dist/mpi/mpi_transport.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "dist/communicator.h"
#include "dist/mpi/mpi_check.h"
#include "dist/mpi/pairwise.h"

namespace tessera::dist {

namespace {

// A tag for each kind of transfer: ranks that disagree about which one is next wait for ever rather
// than read each other's bytes as something else.
constexpr int exchange_tag = 1;
constexpr int all_gather_tag = 2;
constexpr int broadcast_tag = 3;

constexpr int64_t KiB = 1024;
constexpr int64_t direct_chunk_bytes = 1024 * KiB;

// Staging is two slots a peer, at most about 8 MiB in all while chunks of 64 KiB allow it. A chunk
// is a whole number of blocks of 256 elements of up to eight bytes. (At 2 ranks, chunks of 512 KiB
// were 15 % slower than those of 1 MiB, and larger ones no faster.)
int64_t staging_chunk_bytes(int64_t ranks) {
  constexpr int64_t unit = 256 * 8;
  const int64_t share = 8 * 1024 * KiB / (2 * std::max<int64_t>(ranks - 1, 1));
  return std::clamp(share, 64 * KiB, 1024 * KiB) / unit * unit;
}

}  // namespace

int64_t mpi_staging_bytes(int64_t ranks) {
  if (ranks <= 1) return 0;
  return (2 * (ranks - 1) + 1) * staging_chunk_bytes(ranks);
}

MpiTransport::MpiTransport() {
  // Never freed: that is a collective, and a destructor may run on one rank alone. MPI_Finalize
  // takes care of it.
  TESSERA_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &comm_));
  TESSERA_MPI(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  TESSERA_MPI(MPI_Comm_rank(comm_, &rank_));
  TESSERA_MPI(MPI_Comm_size(comm_, &size_));
  chunk_bytes_ = staging_chunk_bytes(size_);
  if (size_ > 1) staging_ = allocate(mpi_staging_bytes(size_), Category::communication);
}

int64_t MpiTransport::exchange(const std::byte* input, int64_t piece_bytes, int contributors,
                               std::span<const int> sources, const Arrived& arrived) {
  std::vector<const std::byte*> outgoing;  // to next_peer(1), next_peer(2), ...
  for (int i = 1; i < size_ && rank_ < contributors; ++i) {
    outgoing.push_back(input + next_peer(i) * piece_bytes);
  }
  return staged_exchange(outgoing, input + rank_ * piece_bytes, piece_bytes, sources, arrived);
}

int64_t MpiTransport::staged_exchange(std::span<const std::byte* const> outgoing,
                                      const std::byte* own, int64_t bytes,
                                      std::span<const int> sources, const Arrived& arrived) {
  Pairwise transfers(comm_, exchange_tag, stop_);
  for (size_t i = 0; i < outgoing.size(); ++i) {
    transfers.send(next_peer(static_cast<int>(i) + 1), outgoing[i], bytes, chunk_bytes_);
  }
  std::vector<int> streams;  // of the sources; -1 for this rank itself
  auto* slots = staging_ ? static_cast<std::byte*>(staging_->data()) : nullptr;
  for (const int source : sources) {
    if (source == rank_) {
      streams.push_back(-1);
      continue;
    }
    streams.push_back(transfers.receive_staged(source, slots, bytes, chunk_bytes_));
    slots += 2 * chunk_bytes_;
  }
  transfers.start();

  for (int64_t begin = 0; begin < bytes; begin += chunk_bytes_) {
    const int64_t chunk = begin / chunk_bytes_;
    const int64_t length = std::min(chunk_bytes_, bytes - begin);
    for (size_t i = 0; i < sources.size(); ++i) {
      if (streams[i] < 0) {
        arrived(rank_, begin, length, own + begin);
        continue;
      }
      arrived(sources[i], begin, length, transfers.await(streams[i], chunk));
      transfers.release(streams[i], chunk);
    }
  }
  transfers.finish();
  return transfers.bytes_sent();
}

int64_t MpiTransport::share(const std::byte* data, int64_t bytes, const Arrived& arrived) {
  std::vector<int> sources(static_cast<size_t>(size_));
  for (int r = 0; r < size_; ++r) sources[static_cast<size_t>(r)] = r;
  if (size_ == 1) {
    if (bytes > 0) arrived(0, 0, bytes, data);
    return 0;
  }
  // What leaves is a copy, so that `arrived` may overwrite the original.
  auto* const own = static_cast<std::byte*>(staging_->data()) + 2 * (size_ - 1) * chunk_bytes_;
  const std::vector<const std::byte*> outgoing(static_cast<size_t>(size_ - 1), own);
  int64_t sent = 0;
  for (int64_t begin = 0; begin < bytes; begin += chunk_bytes_) {
    const int64_t length = std::min(chunk_bytes_, bytes - begin);
    std::memcpy(own, data + begin, static_cast<size_t>(length));
    sent += staged_exchange(outgoing, own, length, sources,
                            [&](int source, int64_t, int64_t, const std::byte* chunk) {
                              arrived(source, begin, length, chunk);
                            });
  }
  return sent;
}

Tensor MpiTransport::staged(const std::byte* data, int64_t bytes, DType dtype) const {
  Tensor chunk = Tensor::unallocated({bytes / dtype_size(dtype)}, dtype);
  chunk.attach(staging_, data - static_cast<const std::byte*>(staging_->data()));
  return chunk;
}

int64_t MpiTransport::all_gather(std::byte* buffer, int64_t piece_bytes) {
  Pairwise transfers(comm_, all_gather_tag, stop_);
  for (int i = 1; i < size_; ++i) {
    transfers.send(next_peer(i), buffer + rank_ * piece_bytes, piece_bytes, direct_chunk_bytes);
  }
  for (int i = 1; i < size_; ++i) {
    const int source = next_peer(size_ - i);
    transfers.receive(source, buffer + source * piece_bytes, piece_bytes, direct_chunk_bytes);
  }
  transfers.start();
  transfers.finish();
  return transfers.bytes_sent();
}

int64_t MpiTransport::broadcast(std::byte* buffer, int64_t bytes, int root) {
  Pairwise transfers(comm_, broadcast_tag, stop_);
  if (rank_ == root) {
    for (int i = 1; i < size_; ++i) {
      transfers.send(next_peer(i), buffer, bytes, direct_chunk_bytes);
    }
  } else {
    transfers.receive(root, buffer, bytes, direct_chunk_bytes);
  }
  transfers.start();
  transfers.finish();
  return transfers.bytes_sent();
}

int64_t MpiTransport::barrier() {
  MPI_Request request = MPI_REQUEST_NULL;
  TESSERA_MPI(MPI_Ibarrier(comm_, &request));
  Backoff backoff;
  // This rank waits for all others to enter the barrier.
  for (;;) {
    int entered = 0;
    TESSERA_MPI(MPI_Test(&request, &entered, MPI_STATUS_IGNORE));
    if (entered) return 0;
    if (stop_.load(std::memory_order_relaxed)) {
      fail("barrier: the communicator went away while it was under way");
    }
    backoff.pause();
  }
}

}  // namespace tessera::dist
