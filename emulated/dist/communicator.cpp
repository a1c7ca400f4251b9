#include "emulated/dist/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "emulated/dist/control.h"

namespace emulated::nccl {

namespace {

size_t bytes_of(const Operation& operation) {
  return operation.count * type_size(operation.type);
}

std::byte* at(void* buffer, size_t byte) { return static_cast<std::byte*>(buffer) + byte; }
const std::byte* at(const void* buffer, size_t byte) {
  return static_cast<const std::byte*>(buffer) + byte;
}

void copy(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

template <class T>
void add(void* sum, const void* values, size_t count) {
  auto* const to = static_cast<T*>(sum);
  const auto* const from = static_cast<const T*>(values);
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

void add(void* sum, const void* values, const Operation& operation) {
  if (operation.type == ncclFloat32) {
    add<float>(sum, values, operation.count);
  } else {
    // ncclInt64: unsigned addition gives the bits of signed addition, and its overflow is defined.
    add<uint64_t>(sum, values, operation.count);
  }
}

bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a);
  const auto second = reinterpret_cast<uintptr_t>(b);
  return first < second + b_bytes && second < first + a_bytes;
}

// The contributions of all ranks to a reduction. The contributions of other ranks are received into
// memory of this object. This rank's own contribution stays in the caller's buffer.
class Contributions {
 public:
  Contributions(Peers& peers, const void* own, size_t bytes)
      : peers_(peers),
        own_(own),
        bytes_(bytes),
        arrived_(std::make_unique<std::vector<std::byte>>(peers.size() * bytes)) {
    for (int peer = 0; peer < peers.size(); ++peer) {
      if (peer != peers.rank()) peers.receive(peer, arrived_->data() + peer * bytes, bytes);
    }
  }
  ~Contributions() {
    if (peers_.has_transfers()) (void)arrived_.release();  // MPI may still write to it
  }
  Contributions(const Contributions&) = delete;
  Contributions& operator=(const Contributions&) = delete;
  const void* of(int rank) const {
    return rank == peers_.rank() ? own_ : arrived_->data() + rank * bytes_;
  }

 private:
  Peers& peers_;
  const void* own_;
  size_t bytes_;
  std::unique_ptr<std::vector<std::byte>> arrived_;
};

}  // namespace

void Communicator::check_buffer(const Operation& operation, const char* name, const void* buffer,
                                size_t bytes) const {
  if (bytes == 0) return;
  const auto refuse = [&](const std::string& why) {
    throw Failure(ncclInvalidArgument, text(operation) + ": the " + name + " buffer " + why);
  };
  if (buffer == nullptr) refuse("is null");
  for (const size_t byte : {size_t{0}, bytes - 1}) {
    cudaPointerAttributes attributes{};
    (void)cudaPointerGetAttributes(&attributes, at(buffer, byte));
    const bool on_device = attributes.type == cudaMemoryTypeDevice ||
                           attributes.type == cudaMemoryTypeManaged;
    if (!on_device) refuse(byte == 0 ? "is not device memory" : "ends outside device memory");
    if (attributes.device != device_) {
      refuse("is on device " + std::to_string(attributes.device) + ", the communicator on " +
             std::to_string(device_));
    }
  }
}

void Communicator::fail(ncclResult_t failure) {
  ncclResult_t none = ncclSuccess;
  failure_.compare_exchange_strong(none, failure);
  if (in_use_.test_and_set()) return;  // a call that uses peers_ is in flight: see end_call
  if (!std::exchange(said_goodbye_, true)) peers_.say_goodbye();
  in_use_.clear();
}

void Communicator::check_usable() const {
  if (failure_ != ncclSuccess) throw Failure(failure_, "the communicator has failed before");
}

void Communicator::check(const Call& call) const {
  check_usable();
  const Operation& operation = call.operation;
  const auto refuse = [&](const std::string& why) {
    throw Failure(ncclInvalidArgument, text(operation) + ": " + why);
  };
  const size_t bytes = bytes_of(operation);
  if (type_size(operation.type) == 0) refuse("the type is not emulated");
  const bool sums = operation.kind == Kind::all_reduce || operation.kind == Kind::reduce_scatter;
  if (sums && operation.reduction != ncclSum) refuse("the reduction is not emulated");
  if (sums && operation.type != ncclFloat32 && operation.type != ncclInt64) {
    refuse("sums of this type are not emulated");
  }
  const bool names_a_rank = operation.kind == Kind::broadcast || operation.is_transfer();
  if (names_a_rank && (operation.rank < 0 || operation.rank >= size())) {
    refuse("there are " + std::to_string(size()) + " ranks");
  }
  if (operation.is_transfer() && operation.rank == rank()) {
    refuse("a transfer between a rank and itself is not emulated");
  }
  const auto own = static_cast<size_t>(rank()) * bytes;
  const auto all = static_cast<size_t>(size()) * bytes;
  const bool gathers = operation.kind == Kind::all_gather;
  const bool scatters = operation.kind == Kind::reduce_scatter;
  const size_t sent = scatters ? all : bytes;
  const size_t received = gathers ? all : bytes;
  const bool reads = operation.kind == Kind::broadcast ? operation.rank == rank()
                                                       : operation.kind != Kind::receive;
  const bool writes = operation.kind != Kind::send;
  if (reads) check_buffer(operation, "send", call.send, sent);
  if (writes) check_buffer(operation, "receive", call.receive, received);
  if (!reads || !writes || bytes == 0) return;
  const bool in_place = at(call.send, scatters ? own : 0) == at(call.receive, gathers ? own : 0);
  if (!in_place && overlap(call.send, sent, call.receive, received)) {
    refuse("the buffers overlap, but the operation is not in place");
  }
}

template <class Body>
void Communicator::make_call(const char* if_in_use, const Body& body) {
  if (in_use_.test_and_set()) throw Failure(ncclInvalidUsage, if_in_use);
  try {
    check_usable();
    body();
  } catch (const Failure& failure) {
    end_call(failure.result);
    throw;
  } catch (...) {
    end_call(ncclInternalError);
    throw;
  }
  end_call(ncclSuccess);
}

void Communicator::end_call(ncclResult_t result) {
  if (result != ncclSuccess) peers_.cancel();
  in_use_.clear();
  // During the call, another thread may have called fail() or leave(). That thread could not say
  // goodbye to the other ranks while the call used peers_, so this thread says goodbye.
  if (result == ncclSuccess) result = failure_;
  if (result != ncclSuccess) fail(result);
}

void Communicator::run(std::span<const Call> calls) {
  make_call("two threads use a communicator at the same time", [&] {
    std::vector<Call> transfers;
    for (const Call& call : calls) {
      if (call.operation.is_transfer()) {
        transfers.push_back(call);
      } else {
        run_collective(call);
      }
    }
    run_transfers(transfers);
    std::this_thread::sleep_for(std::chrono::milliseconds(nccl_delay_ms()));
  });
}

std::shared_ptr<Communicator> Communicator::split(int color, int key) {
  PeersOfGroup group;
  make_call("ncclCommSplit: a call is under way", [&] { group = peers_.split(color, key); });
  return color < 0 ? nullptr : std::make_shared<Communicator>(group, device_);
}

void Communicator::leave() {
  peers_.abort();
  fail(ncclInvalidUsage);
  while (captured_.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Communicator::run_collective(const Call& call) {
  compare(call.operation);
  switch (call.operation.kind) {
    case Kind::all_reduce: return reduce(call);
    case Kind::reduce_scatter: return reduce_scatter(call);
    case Kind::all_gather: return gather(call);
    case Kind::broadcast: return broadcast(call);
    default: throw Failure(ncclInternalError, text(call.operation) + " is not a collective");
  }
}

void Communicator::compare(const Operation& mine) {
  peers_.start_clock();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) peers_.announce(peer, {mine});
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    const std::vector<Operation> theirs = peers_.await(peer, {&mine, 1});
    if (theirs.size() == 1 && theirs[0] == mine) continue;
    throw Failure(ncclInvalidUsage, "rank " + std::to_string(rank()) + " makes " + text(mine) +
                                        ", rank " + std::to_string(peer) + " makes " +
                                        text(theirs));
  }
}

// This rank's sends to the peer must match the peer's receives from this rank, in order. Likewise,
// this rank's receives from the peer must match the peer's sends.
void Communicator::compare_transfers(int peer, std::span<const Operation> mine) {
  const std::vector<Operation> theirs = peers_.await(peer, mine);
  const auto of = [](std::span<const Operation> all, Kind kind) {
    std::vector<std::pair<uint64_t, int32_t>> result;
    for (const Operation& one : all) {
      if (one.kind == kind) result.emplace_back(one.count, one.type);
    }
    return result;
  };
  const bool only_transfers = std::ranges::all_of(theirs, &Operation::is_transfer);
  if (only_transfers && of(mine, Kind::send) == of(theirs, Kind::receive) &&
      of(mine, Kind::receive) == of(theirs, Kind::send)) {
    return;
  }
  throw Failure(ncclInvalidUsage, "rank " + std::to_string(rank()) + " makes " + text(mine) +
                                      ", rank " + std::to_string(peer) + " makes " +
                                      text(theirs));
}

void Communicator::run_transfers(std::span<const Call> transfers) {
  peers_.start_clock();
  std::vector<std::vector<Operation>> of_peer(static_cast<size_t>(size()));
  for (const Call& call : transfers) {
    of_peer[static_cast<size_t>(call.operation.rank)].push_back(call.operation);
  }
  for (int peer = 0; peer < size(); ++peer) {
    const auto& mine = of_peer[static_cast<size_t>(peer)];
    if (!mine.empty()) peers_.announce(peer, mine);
  }
  for (int peer = 0; peer < size(); ++peer) {
    const auto& mine = of_peer[static_cast<size_t>(peer)];
    if (!mine.empty()) compare_transfers(peer, mine);
  }
  for (const Call& call : transfers) {
    if (call.operation.kind == Kind::send) {
      peers_.send(call.operation.rank, call.send, bytes_of(call.operation));
    } else {
      peers_.receive(call.operation.rank, call.receive, bytes_of(call.operation));
    }
  }
  peers_.finish();
}

void Communicator::gather(const Call& call) {
  const size_t bytes = bytes_of(call.operation);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    peers_.send(peer, call.send, bytes);
    peers_.receive(peer, at(call.receive, static_cast<size_t>(peer) * bytes), bytes);
  }
  copy(at(call.receive, static_cast<size_t>(rank()) * bytes), call.send, bytes);
  peers_.finish();
}

void Communicator::broadcast(const Call& call) {
  const size_t bytes = bytes_of(call.operation);
  if (call.operation.rank == rank()) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) peers_.send(peer, call.send, bytes);
    }
    copy(call.receive, call.send, bytes);
  } else {
    peers_.receive(call.operation.rank, call.receive, bytes);
  }
  peers_.finish();
}

// Adds from the last rank down to rank 0. All ranks get equal bits, but with three or more ranks, a
// sum in rank order may have other bits. So tests find code that relies on rank order.
void Communicator::reduce(const Call& call) {
  const size_t bytes = bytes_of(call.operation);
  const Contributions contributions(peers_, call.send, bytes);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) peers_.send(peer, call.send, bytes);
  }
  peers_.finish();
  std::vector<std::byte> sum(bytes);
  copy(sum.data(), contributions.of(size() - 1), bytes);
  for (int source = size() - 2; source >= 0; --source) {
    add(sum.data(), contributions.of(source), call.operation);
  }
  copy(call.receive, sum.data(), bytes);
}

// Adds as in a ring: begins with the next rank's contribution, and ends with this rank's own
// contribution.
void Communicator::reduce_scatter(const Call& call) {
  const size_t bytes = bytes_of(call.operation);
  const void* const own = at(call.send, static_cast<size_t>(rank()) * bytes);
  const Contributions contributions(peers_, own, bytes);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) peers_.send(peer, at(call.send, static_cast<size_t>(peer) * bytes), bytes);
  }
  peers_.finish();
  std::vector<std::byte> sum(bytes);
  copy(sum.data(), contributions.of((rank() + 1) % size()), bytes);
  for (int i = 2; i <= size(); ++i) {
    add(sum.data(), contributions.of((rank() + i) % size()), call.operation);
  }
  copy(call.receive, sum.data(), bytes);
}

}  // namespace emulated::nccl
