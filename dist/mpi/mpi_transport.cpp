#include "dist/mpi/mpi_transport.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dist/mpi/kept_memory.h"
#include "dist/mpi/mpi_check.h"
#include "dist/mpi/pairwise.h"
#include "dist/offsets.h"

namespace tessera::dist {

namespace {

constexpr int64_t KiB = 1024;
constexpr int64_t direct_chunk_bytes = 1024 * KiB;

// Returns the size of a staging slot, which holds one chunk. Staging has two slots for each peer,
// and one more slot for MpiTransport::share().
//  - A slot has 64 KiB to 1 MiB. Within these bounds, the slots of all peers take about 8 MiB.
//  - At 2 ranks, chunks of 512 KiB were 15 % slower than chunks of 1 MiB, and chunks of more than
//    1 MiB were no faster.
//  - A chunk must have whole blocks of 256 elements (Communicator::Receive). The largest elements
//    have 8 bytes, so the size is a multiple of 256 * 8 bytes.
int64_t staging_chunk_bytes(int64_t ranks) {
  constexpr int64_t unit = 256 * 8;
  const int64_t share = 8 * 1024 * KiB / (2 * std::max<int64_t>(ranks - 1, 1));
  return std::clamp(share, 64 * KiB, 1024 * KiB) / unit * unit;
}

// Returns the rank in MPI_COMM_WORLD of each rank of `comm`.
std::vector<int> job_ranks_of(MPI_Comm comm, int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  MPI_Group here = MPI_GROUP_NULL;
  MPI_Group job = MPI_GROUP_NULL;
  TESSERA_MPI(MPI_Comm_group(comm, &here));
  TESSERA_MPI(MPI_Comm_group(MPI_COMM_WORLD, &job));
  std::vector<int> result(ranks.size());
  TESSERA_MPI(MPI_Group_translate_ranks(here, size, ranks.data(), job, result.data()));
  TESSERA_MPI(MPI_Group_free(&here));
  TESSERA_MPI(MPI_Group_free(&job));
  return result;
}

}  // namespace

int64_t mpi_staging_bytes(int64_t ranks) {
  if (ranks <= 1) return 0;
  return (2 * (ranks - 1) + 1) * staging_chunk_bytes(ranks);
}

MpiTransport::MpiTransport() {
  TESSERA_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &channel_.comm));
  open("");
}

MpiTransport::MpiTransport(MPI_Comm comm, const std::string& group) {
  channel_.comm = comm;
  open(group);
}

// channel_.comm is never freed: MPI_Comm_free is a collective, but a destructor may run on one rank
// alone.
void MpiTransport::open(const std::string& group) {
  TESSERA_MPI(MPI_Comm_set_errhandler(channel_.comm, MPI_ERRORS_RETURN));
  TESSERA_MPI(MPI_Comm_rank(channel_.comm, &channel_.rank));
  TESSERA_MPI(MPI_Comm_size(channel_.comm, &channel_.size));
  channel_.group = group;
  channel_.job_ranks = job_ranks_of(channel_.comm, size());
  set_timeout(default_comm_timeout_s);
  headers_ = std::make_shared<CallHeaders>(size());
  transfers_with_.resize(static_cast<size_t>(size()));
  chunk_bytes_ = staging_chunk_bytes(size());
  if (size() > 1) staging_ = allocate(mpi_staging_bytes(size()), Category::communication);
}

void MpiTransport::set_timeout(double seconds) {
  // Clamped to about 250 years, so that the nanoseconds fit into int64_t.
  channel_.timeout_ns = static_cast<int64_t>(std::min(seconds, 8e9) * 1e9);
}

void MpiTransport::begin(CallHeader call) {
  // send_receive sets the number itself. Only two ranks take part in a transfer, so each pair of
  // ranks counts its own transfers.
  if (call.collective != Collective::send_receive) call.number = ++calls_;
  headers_->set(call);
  agreed_ = false;
  header_bytes_sent_ = 0;
}

void MpiTransport::keep_memory() const {
  keep_until_exit(staging_);
  keep_until_exit(headers_);
}

// A call may consist of several rounds of transfers. Headers are exchanged only in the first round.
void MpiTransport::agree_once(Pairwise& transfers) {
  if (!std::exchange(agreed_, true)) transfers.exchange_headers();
}

// Waits for the transfers; returns the bytes of data that were sent.
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
  std::vector<int> streams;  // the stream of each source; -1 for this rank itself
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
  // Send a copy, because `arrived` may overwrite `data` while the chunk is still being sent.
  auto* const own = static_cast<std::byte*>(staging_->data()) + 2 * (size() - 1) * chunk_bytes_;
  const std::vector<const std::byte*> outgoing(static_cast<size_t>(size() - 1), own);
  int64_t sent = 0;
  int64_t begin = 0;
  do {  // runs once even without data: the other ranks wait for this rank's header
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

// Sets the lengths in the headers, for calls whose lengths differ from pair to pair. The header to
// a peer has two lengths: the bytes that this rank sends to the peer, and a code of the bytes that
// this rank expects from the peer.
void MpiTransport::expect(std::span<const int64_t> sent_bytes,
                          std::span<const int64_t> received_bytes) {
  for (size_t r = 0; r < sent_bytes.size(); ++r) {
    const DType dtype = headers_->own.dtype;
    headers_->sent[r].bytes = sent_bytes[r];
    headers_->sent[r].ranks = code_of(received_bytes[r], dtype);
    headers_->expected[r].bytes = received_bytes[r];
    headers_->expected[r].ranks = code_of(sent_bytes[r], dtype);
  }
}

int64_t MpiTransport::exchange_v(const std::byte* input, std::span<const int64_t> send_bytes,
                                 std::byte* output, std::span<const int64_t> receive_bytes) {
  expect(send_bytes, receive_bytes);
  const std::vector<int64_t> from = offsets_of(send_bytes);
  const std::vector<int64_t> to = offsets_of(receive_bytes);
  Pairwise transfers(channel_, *headers_);
  agree_once(transfers);
  for (int i = 1; i < size(); ++i) {
    const auto peer = static_cast<size_t>(next_peer(i));
    if (send_bytes[peer] == 0) continue;
    transfers.send(next_peer(i), input + from[peer], send_bytes[peer], direct_chunk_bytes);
  }
  for (int i = 1; i < size(); ++i) {
    const auto source = static_cast<size_t>(next_peer(size() - i));
    if (receive_bytes[source] == 0) continue;
    transfers.receive(next_peer(size() - i), output + to[source], receive_bytes[source],
                      direct_chunk_bytes);
  }
  transfers.start();
  const auto own = static_cast<size_t>(rank());
  std::copy_n(input + from[own], send_bytes[own], output + to[own]);
  return finish(transfers);
}

int64_t MpiTransport::all_gather_v(std::byte* buffer, std::span<const int64_t> bytes) {
  const int64_t own = bytes[static_cast<size_t>(rank())];
  expect(std::vector<int64_t>(bytes.size(), own), bytes);
  const std::vector<int64_t> begin = offsets_of(bytes);
  Pairwise transfers(channel_, *headers_);
  agree_once(transfers);
  for (int i = 1; i < size() && own > 0; ++i) {
    transfers.send(next_peer(i), buffer + begin[static_cast<size_t>(rank())], own,
                   direct_chunk_bytes);
  }
  for (int i = 1; i < size(); ++i) {
    const int source = next_peer(size() - i);
    const auto s = static_cast<size_t>(source);
    if (bytes[s] > 0) transfers.receive(source, buffer + begin[s], bytes[s], direct_chunk_bytes);
  }
  transfers.start();
  return finish(transfers);
}

// In its header to a peer, each rank announces the data that it sends to this peer. A direction
// without data is announced as 0 bytes of u8.
int64_t MpiTransport::send_receive(const End& outgoing, const End& incoming) {
  std::vector<int> peers;
  for (const int peer : {outgoing.peer, incoming.peer}) {
    if (peer >= 0 && std::ranges::find(peers, peer) == peers.end()) peers.push_back(peer);
  }
  const auto describe = [](CallHeader& header, int peer, const End& end) {
    const bool moves = end.peer == peer && end.bytes > 0;
    header.bytes = moves ? end.bytes : 0;
    header.dtype = moves ? end.dtype : DType::u8;
  };
  for (const int peer : peers) {
    const auto p = static_cast<size_t>(peer);
    CallHeader& sent = headers_->sent[p];
    CallHeader& expected = headers_->expected[p];
    sent.number = expected.number = headers_->own.number = ++transfers_with_[p];
    describe(sent, peer, outgoing);
    describe(expected, peer, incoming);
    sent.ranks = code_of(expected.bytes, expected.dtype);
    expected.ranks = code_of(sent.bytes, sent.dtype);
  }
  Pairwise transfers(channel_, *headers_);
  transfers.exchange_headers(peers);
  if (outgoing.bytes > 0) {
    transfers.send(outgoing.peer, outgoing.data, outgoing.bytes, direct_chunk_bytes);
  }
  if (incoming.bytes > 0) {
    transfers.receive(incoming.peer, incoming.data, incoming.bytes, direct_chunk_bytes);
  }
  transfers.start();
  return finish(transfers);
}

MPI_Comm MpiTransport::split(int color, int key) {
  barrier();  // waits for all ranks with a time limit, which MPI_Comm_split does not have
  MPI_Comm comm = MPI_COMM_NULL;
  TESSERA_MPI(MPI_Comm_split(channel_.comm, color < 0 ? MPI_UNDEFINED : color, key, &comm));
  return comm;
}

int64_t MpiTransport::barrier() {
  Pairwise transfers(channel_, *headers_);
  agree_once(transfers);
  transfers.start();
  return finish(transfers);  // returns once all other ranks have entered the barrier
}

}  // namespace tessera::dist
