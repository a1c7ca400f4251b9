// Lesson 2, yours to write. README.md beside this file explains the task. `course/check 2` grades
// your code.
#include "course/2_autograd/linear.h"
#include "course/lib/todo.h"

namespace course {

// linear.h has `at` and `fill_with_sums`. With them, each of the first four functions is a few
// lines. Find the sum that gives an element. For example, dst = a b for matrices of any size is
//   fill_with_sums(dst, b.size(0), [&](int64_t i, int64_t j, int64_t k) {
//     return at(a, i, k) * at(b, k, j);
//   });

// y[r][o] is b[o] plus the sum over i of x[r][i] W[i][o]. bias.defined() is false for a layer
// without bias; bias.data<float>()[o] is b[o].
void multiply(const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  todo("lesson 2: multiply");
}

// Computes dx. For every o, y[r][o] has one term with the factor x[r][i], so dx[r][i] is a sum over
// o.
void input_gradient(const Tensor&, const Tensor&, const Tensor&) {
  todo("lesson 2: input_gradient");
}

// Computes dW. For every r, y[r][o] has one term with the factor W[i][o], so dW[i][o] is a sum over
// r.
void weight_gradient(const Tensor&, const Tensor&, const Tensor&) {
  todo("lesson 2: weight_gradient");
}

// Computes db. For every r, b[o] is a term of y[r][o], so db[o] is a sum over r.
void bias_gradient(const Tensor&, const Tensor&) { todo("lesson 2: bias_gradient"); }

//   1. Announce the tensors that the forward reads (InUse), for as long as it reads them.
//   2. Compute y: Tensor::empty({rows, out}), multiply.
//   3. return record(operation, y, {x, weight, bias}, closure). The closure gets two arguments:
//      dy (the gradient of y) and `grads`. For each input i whose gradient is wanted
//      (grads.wanted(i)), the closure overwrites grads.destination(i) with the gradient of input i.
//      The closure captures saved(x) and saved(weight). Of x and weight, the closure announces only
//      those whose values it reads. Which values do dx, dW and db need?
// The closure runs long after this function has returned, so capture copies, not references ([&]).
Tensor linear(const Tensor&, const Tensor&, const Tensor&) { todo("lesson 2: linear"); }

// model.named_parameters() lists each parameter once; named.parameter.leaf() has the hooks that
// autograd calls (struct Leaf in core/autograd.h). The second argument of on_complete is `call` in
// linear.h. Your hook must capture copies of the parameter's name and of `call`.
void on_complete(nn::Module&, std::function<void(const std::string& name)>) {
  todo("lesson 2: on_complete");
}

}  // namespace course
