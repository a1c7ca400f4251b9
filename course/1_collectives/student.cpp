// Lesson 1, yours to write. README.md beside this file explains the task. `course/check 1` grades
// your code.
#include "course/1_collectives/collectives.h"
#include "course/lib/todo.h"

namespace course {

// A transfer in both directions at once:
//   communicator.send_receive({outgoing, to}, {incoming, from}, transfer).wait();
// and in one direction:
//   communicator.send(buffer, to, transfer).wait();
//   communicator.receive(buffer, from, transfer).wait();
// Before wait() returns, the outgoing buffer must not change, and the incoming buffer must not be
// read.

// N - 1 rounds. In each round, send the piece to which you added values in the previous round. When
// piece p arrives, add it to piece p of your buffer. With which piece must rank r begin, so that
// piece r arrives last?
void ring_reduce_scatter(dist::Communicator&, const Tensor&) {
  todo("lesson 1: ring_reduce_scatter");
}

// N - 1 rounds. Begin with your own piece. Then send the piece that arrived in the previous round.
void ring_all_gather(dist::Communicator&, const Tensor&) { todo("lesson 1: ring_all_gather"); }

// The body is two lines.
void ring_all_reduce(dist::Communicator&, const Tensor&) { todo("lesson 1: ring_all_reduce"); }

// The distance d is 1, 2, 4, .... In each round, every second one of the remaining ranks sends its
// buffer to rank - d, and is done. N need not be a power of two, so rank + d may not exist.
void tree_reduce(dist::Communicator&, const Tensor&) { todo("lesson 1: tree_reduce"); }

// Send along the tree of tree_reduce, from the root to the leaves. The order of the distances is
// reversed.
void tree_broadcast(dist::Communicator&, const Tensor&) { todo("lesson 1: tree_broadcast"); }

void tree_all_reduce(dist::Communicator&, const Tensor&) { todo("lesson 1: tree_all_reduce"); }

// Both functions return the number of rounds times the time of one round.
double ring_all_reduce_s(double, int64_t, const Link&) { todo("lesson 1: ring_all_reduce_s"); }
double tree_all_reduce_s(double, int64_t, const Link&) { todo("lesson 1: tree_all_reduce_s"); }

}  // namespace course
