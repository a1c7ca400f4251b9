// Lesson 4, yours to write. README.md beside this file explains what; `course/check 4` grades it.
#include "course/4_zero1/zero1.h"
#include "course/lib/todo.h"

namespace course {

// Stage 0 allocates both moments for all parameters: f32_buffer(layout_.flat_elements(), ...).
// How much of them does a rank need that updates its own shards only?
void Zero1::allocate_state() { todo("lesson 4: Zero1::allocate_state"); }

// sums_ has this rank's shards of the gradient. For each bucket:
//   1. update the shard of values_ that this rank owns (own_range, shard_of, apply_rule);
//   2. gather the bucket's other shards (communicator_.all_gather, with Traffic::parameters).
// The next step must not read a value before it has arrived. Count the update in updates_ first:
// the bias correction of AdamW depends on it.
void Zero1::update() { todo("lesson 4: Zero1::update"); }

}  // namespace course
