// Lesson 5, yours to write. README.md beside this file explains what; `course/check 5` grades it.
#include "core/error.h"
#include "course/5_zero2/zero2.h"
#include "course/lib/todo.h"

namespace course {

// The number of the slot that a bucket uses. layout_.buckets()[b].shared says whether bucket b
// holds a tied parameter. No two buckets that fill at the same time may share a slot.
int Zero2::slot_of(int) const { todo("lesson 5: Zero2::slot_of"); }

// Stage 1 allocates gradients_ for all buckets. Allocate sums_ as there (f32_buffer), and the
// memory of slots_ (buffer). How large must each slot be?
void Zero2::allocate_gradients() { todo("lesson 5: Zero2::allocate_gradients"); }

// Called when the first gradient of a bucket is about to be written. Returns memory for the
// bucket's elements, which no call may still read: sent_[b] is the call that sends bucket b. Note
// in the slot which bucket has it now. If the slot's bucket has not been sent yet (filling(b) is
// true), waiting does not help, because this thread fills it: that is an error (TESSERA_CHECK).
Tensor Zero2::open(int) { todo("lesson 5: Zero2::open"); }

}  // namespace course
