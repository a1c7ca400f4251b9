// Lesson 1, yours to write. README.md beside this file explains what; `course/check 1` grades it.
#include "course/1_collectives/collectives.h"
#include "course/lib/todo.h"

namespace course {

// A transfer in both directions at once:
//   communicator.send_receive({outgoing, to}, {incoming, from}, transfer).wait();
// and in one: communicator.send(buffer, to, transfer).wait(); receive(buffer, from, transfer).
// The outgoing buffer must not change, and the incoming one must not be read, before wait()
// returns.

// N - 1 rounds. In each, send the piece that you added to last, and add what arrives to the next
// one. With which piece must rank r begin, so that piece r is the last one that arrives?
void ring_reduce_scatter(dist::Communicator&, const Tensor&) {
  todo("lesson 1: ring_reduce_scatter");
}

// N - 1 rounds. Pass on what arrived in the round before; begin with your own piece.
void ring_all_gather(dist::Communicator&, const Tensor&) { todo("lesson 1: ring_all_gather"); }

// Two lines.
void ring_all_reduce(dist::Communicator&, const Tensor&) { todo("lesson 1: ring_all_reduce"); }

// With distance d = 1, 2, 4, ...: every second rank of those that are left sends its buffer to the
// rank d below it, and is done. N need not be a power of two: some rank may have no one above it.
void tree_reduce(dist::Communicator&, const Tensor&) { todo("lesson 1: tree_reduce"); }

// The same tree from the root to the leaves: the distances come in the opposite order.
void tree_broadcast(dist::Communicator&, const Tensor&) { todo("lesson 1: tree_broadcast"); }

void tree_all_reduce(dist::Communicator&, const Tensor&) { todo("lesson 1: tree_all_reduce"); }

// Rounds, times the time of one round.
double ring_all_reduce_s(double, int64_t, const Link&) { todo("lesson 1: ring_all_reduce_s"); }
double tree_all_reduce_s(double, int64_t, const Link&) { todo("lesson 1: tree_all_reduce_s"); }

}  // namespace course
