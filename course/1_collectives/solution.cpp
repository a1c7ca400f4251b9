#include "course/1_collectives/collectives.h"

namespace course {
namespace {

int ahead(dist::Communicator& communicator) {
  return (communicator.rank() + 1) % communicator.size();
}

int behind(dist::Communicator& communicator) {
  return (communicator.rank() + communicator.size() - 1) % communicator.size();
}

// Returns piece rank() - back, modulo the number of ranks.
Tensor piece_behind(dist::Communicator& communicator, const Tensor& buffer, int back) {
  const int ranks = communicator.size();
  return piece(buffer, (communicator.rank() + 2 * ranks - back) % ranks, ranks);
}

}  // namespace

// The sum of piece r starts at rank r + 1. Each rank adds its contribution and sends the sum to the
// next rank. The sum ends at rank r.
void ring_reduce_scatter(dist::Communicator& communicator, const Tensor& buffer) {
  for (int round = 0; round < communicator.size() - 1; ++round) {
    const Tensor outgoing = piece_behind(communicator, buffer, round + 1);
    const Tensor sum = piece_behind(communicator, buffer, round + 2);
    const Tensor arrived = Tensor::empty(sum.shape());
    communicator
        .send_receive({outgoing, ahead(communicator)}, {arrived, behind(communicator)}, transfer)
        .wait();
    add(sum, arrived);
  }
}

// Each rank begins with its own piece, and then sends the piece that arrived in the previous round.
void ring_all_gather(dist::Communicator& communicator, const Tensor& buffer) {
  for (int round = 0; round < communicator.size() - 1; ++round) {
    communicator
        .send_receive({piece_behind(communicator, buffer, round), ahead(communicator)},
                      {piece_behind(communicator, buffer, round + 1), behind(communicator)},
                      transfer)
        .wait();
  }
}

void ring_all_reduce(dist::Communicator& communicator, const Tensor& buffer) {
  ring_reduce_scatter(communicator, buffer);
  ring_all_gather(communicator, buffer);
}

// In the round with distance d, ranks that are odd multiples of d send to rank - d.
void tree_reduce(dist::Communicator& communicator, const Tensor& buffer) {
  const int rank = communicator.rank();
  const Tensor arrived = Tensor::empty(buffer.shape());
  for (int distance = 1; distance < communicator.size(); distance *= 2) {
    if (rank % (2 * distance) == distance) {
      communicator.send(buffer, rank - distance, transfer).wait();
      return;
    }
    if (rank + distance >= communicator.size()) continue;
    communicator.receive(arrived, rank + distance, transfer).wait();
    add(buffer, arrived);
  }
}

// Sends along the tree of tree_reduce, from the root to the leaves.
void tree_broadcast(dist::Communicator& communicator, const Tensor& buffer) {
  const int rank = communicator.rank();
  int distance = 1;
  while (distance < communicator.size()) distance *= 2;
  for (distance /= 2; distance > 0; distance /= 2) {
    if (rank % (2 * distance) == distance) {
      communicator.receive(buffer, rank - distance, transfer).wait();
    } else if (rank % (2 * distance) == 0 && rank + distance < communicator.size()) {
      communicator.send(buffer, rank + distance, transfer).wait();
    }
  }
}

void tree_all_reduce(dist::Communicator& communicator, const Tensor& buffer) {
  tree_reduce(communicator, buffer);
  tree_broadcast(communicator, buffer);
}

double ring_all_reduce_s(double bytes, int64_t ranks, const Link& link) {
  const auto n = static_cast<double>(ranks);
  return 2 * (n - 1) * (link.latency_s + bytes / n / link.bytes_per_s);
}

double tree_all_reduce_s(double bytes, int64_t ranks, const Link& link) {
  int rounds = 0;
  while (int64_t{1} << rounds < ranks) ++rounds;
  return 2 * rounds * (link.latency_s + bytes / link.bytes_per_s);
}

}  // namespace course
