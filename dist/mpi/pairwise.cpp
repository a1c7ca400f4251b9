#include "dist/mpi/pairwise.h"

#include <algorithm>
#include <set>

#include "core/run_status.h"
#include "dist/mpi/mpi_check.h"
#include "dist/stalled.h"

namespace tessera::dist {

namespace {

// A stream is the chunks of one send or receive. It has one slot per chunk that may be in flight.
//  - A staged receive has two slots, because each slot needs memory for a chunk.
//  - All other streams have many slots, because these slots need no memory. Many posted sends save
//    time: between ranks of one host, Open MPI's receiver copies the data of a posted send itself,
//    and need not wait until the sender's thread runs. With 32 slots instead of 4, an all-gather of
//    128 MB on 2 ranks was 1.5 times as fast.
constexpr int64_t direct_slots = 32;
constexpr int64_t staged_slots = 2;

constexpr int header_tag = 1;
constexpr int data_tag = 2;

// Returns the subject and verb of an error message: "rank 2 has" or "ranks 2, 3 have".
template <class Ranks>
std::string have(const Ranks& ranks) {
  return fmt::format("rank{} {} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "),
                     ranks.size() == 1 ? "has" : "have");
}

}  // namespace

Pairwise::Pairwise(const Channel& channel, CallHeaders& headers)
    : channel_(channel),
      headers_(headers),
      agreed_(static_cast<size_t>(channel.size), 1),
      stream_from_(static_cast<size_t>(channel.size), -1) {}

Pairwise::~Pairwise() {
  // Requests are active here only after a failure. Waiting for them could last for ever, because a
  // peer may be gone or stopped. Receives that have not begun are cancelled. MPI may still read or
  // write the memory of other requests, so the owner must keep this memory.
  for (size_t i = 0; active_ > 0 && i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    const Direction direction = streams_[stream_of_[i]].direction;
    const bool sends = direction == Direction::send || direction == Direction::send_header;
    if (!sends) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
}

int Pairwise::add(Stream stream) {
  const int64_t most = stream.direction == Direction::receive_staged ? staged_slots : direct_slots;
  stream.slots = std::min(most, stream.chunks());
  stream.first_request = requests_.size();
  const size_t requests = requests_.size() + static_cast<size_t>(stream.slots);
  requests_.resize(requests, MPI_REQUEST_NULL);
  stream_of_.resize(requests, streams_.size());
  arrived_.resize(requests, 0);
  indices_.resize(requests);
  streams_.push_back(stream);
  return static_cast<int>(streams_.size() - 1);
}

void Pairwise::send(int peer, const std::byte* data, int64_t bytes, int64_t chunk) {
  add({Direction::send, peer, const_cast<std::byte*>(data), bytes, chunk});
}

int Pairwise::add_receive(const Stream& stream) {
  return stream_from_[static_cast<size_t>(stream.peer)] = add(stream);
}

void Pairwise::receive(int peer, std::byte* data, int64_t bytes, int64_t chunk) {
  add_receive({Direction::receive, peer, data, bytes, chunk});
}

int Pairwise::receive_staged(int peer, std::byte* slots, int64_t bytes, int64_t chunk) {
  return add_receive({Direction::receive_staged, peer, slots, bytes, chunk});
}

void Pairwise::exchange_headers(std::span<const int> peers) {
  const auto bytes_of = [](CallHeader& header) { return reinterpret_cast<std::byte*>(&header); };
  for (const int peer : peers) {
    const auto p = static_cast<size_t>(peer);
    add({Direction::send_header, peer, bytes_of(headers_.sent[p]), mpi_header_bytes,
         mpi_header_bytes});
    add({Direction::receive_header, peer, bytes_of(headers_.received[p]), mpi_header_bytes,
         mpi_header_bytes});
    agreed_[p] = 0;
  }
}

void Pairwise::exchange_headers() {
  std::vector<int> peers;
  for (int i = 1; i < channel_.size; ++i) peers.push_back(channel_.next_peer(i));
  exchange_headers(peers);
}

// Posts the stream's next chunk in the free slot `slot`; does nothing if all chunks are posted.
void Pairwise::post(size_t index, int64_t slot) {
  Stream& stream = streams_[index];
  if (stream.posted == stream.chunks()) return;
  const int64_t chunk = stream.posted++;
  const int64_t begin = chunk * stream.chunk_bytes;
  const int count = static_cast<int>(std::min(stream.chunk_bytes, stream.bytes - begin));
  const bool staged = stream.direction == Direction::receive_staged;
  std::byte* const data = stream.data + (staged ? slot * stream.chunk_bytes : begin);
  MPI_Request* const request = &requests_[stream.first_request + static_cast<size_t>(slot)];
  const MPI_Comm comm = channel_.comm;
  switch (stream.direction) {
    case Direction::send_header:
      TESSERA_MPI(MPI_Isend(data, count, MPI_BYTE, stream.peer, header_tag, comm, request));
      header_bytes_sent_ += count;
      break;
    case Direction::receive_header:
      TESSERA_MPI(MPI_Irecv(data, count, MPI_BYTE, stream.peer, header_tag, comm, request));
      break;
    case Direction::send:
      TESSERA_MPI(MPI_Isend(data, count, MPI_BYTE, stream.peer, data_tag, comm, request));
      bytes_sent_ += count;
      break;
    case Direction::receive:
    case Direction::receive_staged:
      TESSERA_MPI(MPI_Irecv(data, count, MPI_BYTE, stream.peer, data_tag, comm, request));
      break;
  }
  ++active_;
}

void Pairwise::start(Direction direction) {
  // Post chunk 0 of all peers first, then chunk 1, and so on. So no peer has to wait until all
  // other peers are served.
  for (int64_t slot = 0; slot < direct_slots; ++slot) {
    for (size_t index = 0; index < streams_.size(); ++index) {
      const Stream& stream = streams_[index];
      const bool waits = stream.receives_data() && agreed_[static_cast<size_t>(stream.peer)] == 0;
      if (stream.direction == direction && slot < stream.slots && !waits) post(index, slot);
    }
  }
}

void Pairwise::start() {
  // Post the sends first. If the data of a receive is ready, posting the receive copies the data;
  // during this copy, the peers would wait for this rank's sends.
  start(Direction::send_header);
  start(Direction::send);
  start(Direction::receive_header);
  start(Direction::receive);
  start(Direction::receive_staged);
}

// Called when the peer's header has arrived. Throws if the header is not the expected header.
// Otherwise posts the first chunks of the receive from this peer, if there is one.
void Pairwise::agree(int peer) {
  const auto p = static_cast<size_t>(peer);
  if (!(headers_.expected[p] == headers_.received[p])) fail_disagreeing(channel_, headers_, peer);
  agreed_[p] = 1;
  const int index = stream_from_[static_cast<size_t>(peer)];
  if (index < 0) return;
  for (int64_t slot = 0; slot < streams_[static_cast<size_t>(index)].slots; ++slot) {
    post(static_cast<size_t>(index), slot);
  }
}

const std::byte* Pairwise::await(int index, int64_t chunk) {
  const Stream& stream = streams_[static_cast<size_t>(index)];
  const int64_t slot = chunk % stream.slots;
  const size_t request = stream.first_request + static_cast<size_t>(slot);
  // Poll even if the chunk has arrived, because poll() also posts sends that peers wait for.
  poll();
  // Wait for the peer's chunk.
  while (arrived_[request] == 0) progress();
  return stream.data + slot * stream.chunk_bytes;
}

void Pairwise::release(int index, int64_t chunk) {
  const Stream& stream = streams_[static_cast<size_t>(index)];
  const int64_t slot = chunk % stream.slots;
  arrived_[stream.first_request + static_cast<size_t>(slot)] = 0;
  post(static_cast<size_t>(index), slot);
}

void Pairwise::finish() {
  // Wait until MPI has sent all of this rank's data and received all data from the peers.
  while (active_ > 0) progress();
}

void Pairwise::progress() {
  constexpr int64_t noticeable_ns = 50'000'000;
  if (poll()) {
    if (backoff_.slept_ns() > noticeable_ns) publish_waiting(false);
    backoff_.reset();
  } else {
    backoff_.pause();
    if (backoff_.slept_ns() > noticeable_ns) publish_waiting(true);
    if (backoff_.slept_ns() > channel_.timeout_ns) fail_stalled();
  }
}

// Throws an error that names the ranks whose header is missing: these ranks have not made the call.
// If all ranks have made the call, the error names the ranks that have not sent or received data.
void Pairwise::fail_stalled() const {
  std::vector<int> absent;
  std::set<int> stuck;
  for (int peer = 0; peer < channel_.size; ++peer) {
    if (agreed_[static_cast<size_t>(peer)] == 0) absent.push_back(channel_.job_rank(peer));
  }
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) {
      stuck.insert(channel_.job_rank(streams_[stream_of_[i]].peer));
    }
  }
  const std::string who = absent.empty() ? have(stuck) + " made this call, but not finished it"
                                         : have(absent) + " not made this call";
  if (absent.empty()) absent.assign(stuck.begin(), stuck.end());
  throw StalledError(
      fmt::format(
          "{}{}: nothing has moved for {} s (--comm-timeout): {} (stopped, hanging, or computing)",
          headers_.own.text(), channel_.group.empty() ? "" : " in group " + channel_.group,
          static_cast<double>(channel_.timeout_ns) / 1e9, who),
      absent);
}

// Handles the requests that have completed; returns true if there were any.
bool Pairwise::poll() {
  if (channel_.stop.load(std::memory_order_relaxed)) {
    fail("collective: the communicator was destroyed before the collective had finished");
  }
  int count = 0;
  TESSERA_MPI(MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                           indices_.data(), MPI_STATUSES_IGNORE));
  if (count == MPI_UNDEFINED) return false;  // no request is in flight
  active_ -= count;
  for (int i = 0; i < count; ++i) {
    completed(static_cast<size_t>(indices_[static_cast<size_t>(i)]));
  }
  return count > 0;
}

void Pairwise::completed(size_t request) {
  const size_t index = stream_of_[request];
  const Stream& stream = streams_[index];
  if (stream.direction == Direction::receive_header) {
    agree(stream.peer);
  } else if (stream.direction == Direction::receive_staged) {
    arrived_[request] = 1;
  } else {
    post(index, static_cast<int64_t>(request - stream.first_request));
  }
}

}  // namespace tessera::dist
