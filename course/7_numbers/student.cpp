// Lesson 7, yours to write. README.md beside this file explains the task. `course/check 7` grades
// your code.
#include <cmath>

#include "core/context.h"
#include "core/ops/convert.h"
#include "course/7_numbers/mixed.h"
#include "course/lib/todo.h"

namespace course {

// The body is one loop.
float sum_in_order(std::span<const float>) { todo("lesson 7: sum_in_order"); }

// The body has two loops: over ranks, and over the micro-batches of a rank.
float sum_by_ranks(std::span<const float>, int) { todo("lesson 7: sum_by_ranks"); }

// Allocate the moments as before (Zero3::allocate_state), and f32 master weights of this rank's
// shards.
void Mixed::allocate_state() { todo("lesson 7: Mixed::allocate_state"); }

// Call Zero3::place(), which writes rounded initial values to the 16-bit shards and sets hooks.
// Then write the exact initial values to the master weights. initialize(bucket, range, tensor)
// writes to f32, bf16 and f16 tensors.
void Mixed::place() { todo("lesson 7: Mixed::place"); }

// The gradient has 16 bits, the gradient sum has 32. kernels::convert(current_context({}), to,
// from) converts between dtypes; Tensor::empty(shape) is an f32 tensor.
void Mixed::accumulate(const Tensor&, const Tensor&, bool) { todo("lesson 7: Mixed::accumulate"); }

// own_sums() returns tensors with the gradient sums that this rank owns; tensor.values<float>()
// lists the numbers of a tensor. All ranks must return the same answer. communicator_.all_reduce
// adds up a tensor of f32 or i64 over ranks.
bool Mixed::all_finite() const { todo("lesson 7: Mixed::all_finite"); }

// With scaling_, skip a step whose sums are not all finite: change no weight, halve loss_scale_ and
// set good_steps_ to 0. Otherwise count the update, apply the rule to the master weights, and round
// the master weights into the shards of values_. With scaling_, after scaling_->growth_interval
// steps without overflow, double loss_scale_ and set good_steps_ to 0. apply_rule divides the sums
// by loss_scale_.
void Mixed::update() { todo("lesson 7: Mixed::update"); }

}  // namespace course
