// The calls of the communicator over NCCL that consist of sends and receives: exchange,
// reduce_scatter (except where NCCL's own reduction can be used), calls with pieces of any length,
// and transfers between two ranks.
#include <algorithm>
#include <utility>

#include "core/cuda/check.h"
#include "core/ops/copy.h"
#include "dist/collective_checks.h"
#include "dist/fold.h"
#include "dist/nccl/cuda/nccl_check.h"
#include "dist/nccl/cuda/nccl_communicator.h"
#include "dist/nccl/cuda/nccl_group.h"
#include "dist/offsets.h"

namespace tessera::dist {

namespace {

std::byte* bytes_of(const Tensor& tensor) {
  return tensor.elements() > 0 ? static_cast<std::byte*>(tensor.raw()) : nullptr;
}

}  // namespace

Work NcclCommunicator::exchange(const Tensor& input, int contributors, Receive receive, Call call) {
  check_exchange(input, contributors, size_, device_);
  auto body = [this, input, contributors, receive = std::move(receive)] {
    std::vector<int> sources;
    for (int source = 0; source < contributors; ++source) sources.push_back(source);
    return send_pieces(input, contributors, sources, receive);
  };
  return submit({call, Collective::exchange, input.bytes(), std::move(body)});
}

// NCCL's own reduction adds the pieces of all ranks, and rounds each partial sum to the dtype of
// the input. So NCCL reduces only f32 inputs to which all ranks contribute. Otherwise the pieces
// are sent unsummed, and this rank adds them (fold). This rank adds its own piece first, because
// `shard` may be the memory of this piece in `input`. The other pieces follow in rank order.
Work NcclCommunicator::reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                                      Call call) {
  check_reduce_scatter(shard, input, contributors, size_, device_);
  const bool by_nccl = input.dtype() == DType::f32 && contributors == size_;
  auto by_folding = [this, shard, input, contributors] {
    std::vector<int> sources;
    if (rank_ < contributors) sources.push_back(rank_);
    for (int source = 0; source < contributors; ++source) {
      if (source != rank_) sources.push_back(source);
    }
    const int first = sources.front();
    return send_pieces(
        input, contributors, sources, [&](int source, int64_t begin, const Tensor& chunk) {
          kernels::fold(current_context(device_), shard.flat(begin, begin + chunk.elements()),
                        chunk, source == first);
        });
  };
  auto in_one_call = [this, shard, input] {
    if (shard.elements() > 0) {
      TESSERA_NCCL(ncclReduceScatter(input.raw(), shard.raw(),
                                     static_cast<size_t>(shard.elements()), ncclFloat32, ncclSum,
                                     comm_, stream_));
    }
    return (size_ - 1) * shard.bytes();
  };
  NcclTask task{call, Collective::reduce_scatter, input.bytes(), std::move(by_folding)};
  if (by_nccl) task.body = std::move(in_one_call);
  return submit(std::move(task));
}

// If rank() < contributors, sends piece r of `input` to every other rank r. For each chunk of this
// rank's piece, calls `receive` once per source, in the order of `sources`.
int64_t NcclCommunicator::send_pieces(const Tensor& input, int contributors,
                                      std::span<const int> sources, const Receive& receive) {
  const int64_t piece = input.elements() / size_;
  const int64_t element_bytes = dtype_size(input.dtype());
  const int64_t chunk = size_ > 1 ? chunk_bytes_ / element_bytes : std::max<int64_t>(piece, 1);
  for (int64_t begin = 0; begin < piece; begin += chunk) {
    const int64_t elements = std::min(chunk, piece - begin);
    transfer(input, begin, elements, contributors);
    for (const int source : sources) {
      const int64_t own = rank_ * piece + begin;
      receive(source, begin,
              source == rank_ ? input.flat(own, own + elements)
                              : staged(source * chunk_bytes_, elements, input.dtype()));
    }
  }
  return rank_ < contributors ? (size_ - 1) * piece * element_bytes : 0;
}

void NcclCommunicator::transfer(const Tensor& input, int64_t begin, int64_t elements,
                                int contributors) {
  if (size_ == 1) return;
  const int64_t piece = input.elements() / size_;
  const int64_t element_bytes = dtype_size(input.dtype());
  const auto bytes = static_cast<size_t>(elements * element_bytes);
  auto* const slots = static_cast<std::byte*>(staging_->data());
  NcclGroup group;
  for (int i = 1; i < size_ && rank_ < contributors; ++i) {
    const int peer = (rank_ + i) % size_;
    const std::byte* const from = bytes_of(input) + (peer * piece + begin) * element_bytes;
    TESSERA_NCCL(ncclSend(from, bytes, ncclUint8, peer, comm_, stream_));
  }
  for (int source = 0; source < contributors; ++source) {
    if (source == rank_) continue;
    TESSERA_NCCL(ncclRecv(slots + source * chunk_bytes_, bytes, ncclUint8, source, comm_, stream_));
  }
  group.launch();
}

Tensor NcclCommunicator::staged(int64_t first_byte, int64_t elements, DType dtype) const {
  Tensor chunk = Tensor::unallocated({elements}, dtype);
  chunk.attach(staging_, first_byte);
  return chunk;
}

// An empty piece is neither sent nor received: sender and receiver both know that its length is 0.
void NcclCommunicator::send_bytes(const std::byte* data, int64_t bytes, int peer) const {
  if (bytes == 0) return;
  TESSERA_NCCL(ncclSend(data, static_cast<size_t>(bytes), ncclUint8, peer, comm_, stream_));
}

void NcclCommunicator::receive_bytes(std::byte* data, int64_t bytes, int peer) const {
  if (bytes == 0) return;
  TESSERA_NCCL(ncclRecv(data, static_cast<size_t>(bytes), ncclUint8, peer, comm_, stream_));
}

Work NcclCommunicator::exchange_v(const Tensor& input, const Tensor& output, ExchangeCounts counts,
                                  Call call) {
  check_exchange_v(input, output, counts, rank_, size_, device_);
  auto body = [this, input, output, counts = std::move(counts)] {
    const int64_t size = dtype_size(input.dtype());
    const std::vector<int64_t> from = offsets_of(counts.send);
    const std::vector<int64_t> to = offsets_of(counts.receive);
    NcclGroup group;
    for (int i = 1; i < size_; ++i) {
      const auto peer = static_cast<size_t>((rank_ + i) % size_);
      send_bytes(bytes_of(input) + from[peer] * size, counts.send[peer] * size,
                 static_cast<int>(peer));
      receive_bytes(bytes_of(output) + to[peer] * size, counts.receive[peer] * size,
                    static_cast<int>(peer));
    }
    group.launch();
    const auto own = static_cast<size_t>(rank_);
    const int64_t elements = counts.send[own];
    if (elements > 0) {
      kernels::copy(current_context(device_), output.flat(to[own], to[own] + elements),
                    input.flat(from[own], from[own] + elements));
    }
    return (input.elements() - elements) * size;
  };
  return submit({call, Collective::exchange_v, input.bytes(), std::move(body)});
}

Work NcclCommunicator::all_gather_v(const Tensor& buffer, std::vector<int64_t> counts, Call call) {
  check_all_gather_v(buffer, counts, size_, device_);
  auto body = [this, buffer, counts = std::move(counts)] {
    const int64_t size = dtype_size(buffer.dtype());
    const std::vector<int64_t> begin = offsets_of(counts);
    const auto own = static_cast<size_t>(rank_);
    NcclGroup group;
    for (int i = 1; i < size_; ++i) {
      const auto peer = static_cast<size_t>((rank_ + i) % size_);
      send_bytes(bytes_of(buffer) + begin[own] * size, counts[own] * size, static_cast<int>(peer));
      receive_bytes(bytes_of(buffer) + begin[peer] * size, counts[peer] * size,
                    static_cast<int>(peer));
    }
    group.launch();
    return (size_ - 1) * counts[own] * size;
  };
  return submit({call, Collective::all_gather_v, buffer.bytes(), std::move(body)});
}

Work NcclCommunicator::send_receive(const Transfer& outgoing, const Transfer& incoming, Call call) {
  check_send_receive(outgoing, incoming, rank_, size_, device_);
  auto body = [this, outgoing, incoming] {
    if (outgoing.peer == rank_) {
      if (outgoing.buffer.elements() > 0) {
        kernels::copy(current_context(device_), incoming.buffer, outgoing.buffer);
      }
      return int64_t{0};
    }
    NcclGroup group;
    if (outgoing.peer >= 0) {
      send_bytes(bytes_of(outgoing.buffer), outgoing.buffer.bytes(), outgoing.peer);
    }
    if (incoming.peer >= 0) {
      receive_bytes(bytes_of(incoming.buffer), incoming.buffer.bytes(), incoming.peer);
    }
    group.launch();
    return outgoing.peer >= 0 ? outgoing.buffer.bytes() : 0;
  };
  const Tensor& described = outgoing.peer >= 0 ? outgoing.buffer : incoming.buffer;
  return submit({call, Collective::send_receive, described.bytes(), std::move(body)});
}

}  // namespace tessera::dist
