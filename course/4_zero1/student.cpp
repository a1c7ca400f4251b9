// Lesson 4, yours to write. README.md beside this file explains the task. `course/check 4` grades
// your code.
#include "course/4_zero1/zero1.h"
#include "course/lib/todo.h"

namespace course {

// Stage 0 allocates both moments for all parameters: f32_buffer(layout_.flat_elements(), ...).
// How many elements does a rank need if the rank updates only its own shards?
void Zero1::allocate_state() { todo("lesson 4: Zero1::allocate_state"); }

// sums_ has this rank's shards of the gradient. For each bucket:
//   1. update the shard of values_ that this rank owns (own_range, shard_of, apply_rule);
//   2. gather the bucket's other shards (communicator_.all_gather, with Traffic::parameters).
// The next step must not read a value before the value has arrived. Count the update in updates_
// first, because the bias correction of AdamW depends on this count.
void Zero1::update() { todo("lesson 4: Zero1::update"); }

}  // namespace course
