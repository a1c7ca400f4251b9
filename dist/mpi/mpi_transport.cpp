#include "dist/mpi/mpi_transport.h"

#include <algorithm>
#include <utility>

#include "dist/mpi/kept_memory.h"
#include "dist/mpi/mpi_check.h"
#include "dist/mpi/pairwise.h"

namespace tessera::dist {

namespace {

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
  TESSERA_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &channel_.comm));
  TESSERA_MPI(MPI_Comm_set_errhandler(channel_.comm, MPI_ERRORS_RETURN));
  TESSERA_MPI(MPI_Comm_rank(channel_.comm, &channel_.rank));
  TESSERA_MPI(MPI_Comm_size(channel_.comm, &channel_.size));
  set_timeout(default_comm_timeout_s);
  headers_ = std::make_shared<std::vector<CallHeader>>(size());
  chunk_bytes_ = staging_chunk_bytes(size());
  if (size() > 1) staging_ = allocate(mpi_staging_bytes(size()), Category::communication);
}

void MpiTransport::set_timeout(double seconds) {
  // Not more than some hundred years, in 64 bits of nanoseconds.
  channel_.timeout_ns = static_cast<int64_t>(std::min(seconds, 8e9) * 1e9);
}

void MpiTransport::begin(CallHeader call) {
  call.number = ++calls_;
  (*headers_)[static_cast<size_t>(rank())] = call;
  agreed_ = false;
  header_bytes_sent_ = 0;
}

void MpiTransport::keep_memory() const {
  keep_until_exit(staging_);
  keep_until_exit(headers_);
}

// Of several rounds of transfers the first one says which call it is.
void MpiTransport::agree_once(Pairwise& transfers) {
  if (!std::exchange(agreed_, true)) transfers.exchange_headers();
}

// The bytes of data that were sent.
int64_t MpiTransport::finish(Pairwise& transfers) {
  transfers.finish();
  header_bytes_sent_ += transfers.header_bytes_sent();
  return transfers.bytes_sent();
}

int64_t MpiTransport::exchange(const std::byte* input, int64_t piece_bytes, int contributors,
                               std::span<const int> sources, const Arrived& arrived) {
  std::vector<const std::byte*> outgoing;  // to next_peer(1), next_peer(2), ...
  for (int i = 1; i < size() && rank() < contributors; ++i) {
    outgoing.push_back(input + next_peer(i) * piece_bytes);
  }
  return staged_exchange(outgoing, input + rank() * piece_bytes, piece_bytes, sources, arrived);
}

int64_t MpiTransport::staged_exchange(std::span<const std::byte* const> outgoing,
                                      const std::byte* own, int64_t bytes,
                                      std::span<const int> sources, const Arrived& arrived) {
  Pairwise transfers(channel_, *headers_);
  agree_once(transfers);
  for (size_t i = 0; i < outgoing.size(); ++i) {
    transfers.send(next_peer(static_cast<int>(i) + 1), outgoing[i], bytes, chunk_bytes_);
  }
  std::vector<int> streams;  // of the sources; -1 for this rank itself
  auto* slots = staging_ ? static_cast<std::byte*>(staging_->data()) : nullptr;
  for (const int source : sources) {
    if (source == rank()) {
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
        arrived(rank(), begin, length, own + begin);
        continue;
      }
      arrived(sources[i], begin, length, transfers.await(streams[i], chunk));
      transfers.release(streams[i], chunk);
    }
  }
  return finish(transfers);
}

int64_t MpiTransport::share(const std::byte* data, int64_t bytes, const Arrived& arrived) {
  std::vector<int> sources(static_cast<size_t>(size()));
  for (int r = 0; r < size(); ++r) sources[static_cast<size_t>(r)] = r;
  if (size() == 1) {
    if (bytes > 0) arrived(0, 0, bytes, data);
    return 0;
  }
  // What leaves is a copy, so that `arrived` may overwrite the original.
  auto* const own = static_cast<std::byte*>(staging_->data()) + 2 * (size() - 1) * chunk_bytes_;
  const std::vector<const std::byte*> outgoing(static_cast<size_t>(size() - 1), own);
  int64_t sent = 0;
  int64_t begin = 0;
  do {  // once where there is nothing to share: the others are to know that this rank has come
    const int64_t length = std::min(chunk_bytes_, bytes - begin);
    std::copy_n(data + begin, length, own);
    sent += staged_exchange(outgoing, own, length, sources,
                            [&](int source, int64_t, int64_t, const std::byte* chunk) {
                              arrived(source, begin, length, chunk);
                            });
    begin += chunk_bytes_;
  } while (begin < bytes);
  return sent;
}

Tensor MpiTransport::staged(const std::byte* data, int64_t bytes, DType dtype) const {
  Tensor chunk = Tensor::unallocated({bytes / dtype_size(dtype)}, dtype);
  chunk.attach(staging_, data - static_cast<const std::byte*>(staging_->data()));
  return chunk;
}

int64_t MpiTransport::all_gather(std::byte* buffer, int64_t piece_bytes) {
  Pairwise transfers(channel_, *headers_);
  agree_once(transfers);
  for (int i = 1; i < size(); ++i) {
    transfers.send(next_peer(i), buffer + rank() * piece_bytes, piece_bytes, direct_chunk_bytes);
  }
  for (int i = 1; i < size(); ++i) {
    const int source = next_peer(size() - i);
    transfers.receive(source, buffer + source * piece_bytes, piece_bytes, direct_chunk_bytes);
  }
  transfers.start();
  return finish(transfers);
}

int64_t MpiTransport::broadcast(std::byte* buffer, int64_t bytes, int root) {
  Pairwise transfers(channel_, *headers_);
  agree_once(transfers);
  if (rank() == root) {
    for (int i = 1; i < size(); ++i) {
      transfers.send(next_peer(i), buffer, bytes, direct_chunk_bytes);
    }
  } else {
    transfers.receive(root, buffer, bytes, direct_chunk_bytes);
  }
  transfers.start();
  return finish(transfers);
}

int64_t MpiTransport::barrier() {
  Pairwise transfers(channel_, *headers_);
  agree_once(transfers);
  transfers.start();
  return finish(transfers);  // this rank waits for all others to enter the barrier
}

}  // namespace tessera::dist
