// Lesson 5, yours to write. README.md beside this file explains the task. `course/check 5` grades
// your code.
#include "core/error.h"
#include "course/5_zero2/zero2.h"
#include "course/lib/todo.h"

namespace course {

// Returns the index in slots_ of the slot that a bucket uses. layout_.buckets()[b].shared is true
// if bucket b has a tied parameter. Two buckets that fill at the same time must not share a slot.
int Zero2::slot_of(int) const { todo("lesson 5: Zero2::slot_of"); }

// Stage 1 allocates gradients_ for all buckets. Allocate sums_ as stage 1 does (f32_buffer), and
// the memory of slots_ (buffer). How large must each slot be?
void Zero2::allocate_gradients() { todo("lesson 5: Zero2::allocate_gradients"); }

// Called before the first gradient of a bucket is written. Returns memory for the bucket's
// elements, in the bucket's slot. Let b be the bucket that used the slot before, if there is one.
// The call that sends b (sent_[b]) may still read the slot's memory, so wait for this call. But if
// b has not been sent yet (filling(b) is true), fail with TESSERA_CHECK. Waiting would not help,
// because this thread fills b. Record in the slot which bucket uses it now.
Tensor Zero2::open(int) { todo("lesson 5: Zero2::open"); }

}  // namespace course
