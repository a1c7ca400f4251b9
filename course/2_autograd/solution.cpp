#include "course/2_autograd/linear.h"

namespace course {

void multiply(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  fill_with_sums(y, weight.size(0),
                 [&](int64_t r, int64_t o, int64_t i) { return at(x, r, i) * at(weight, i, o); });
  if (!bias.defined()) return;
  for (int64_t r = 0; r < y.size(0); ++r) {
    for (int64_t o = 0; o < y.size(1); ++o) at(y, r, o) += bias.data<float>()[o];
  }
}

void input_gradient(const Tensor& dx, const Tensor& dy, const Tensor& weight) {
  fill_with_sums(dx, weight.size(1),
                 [&](int64_t r, int64_t i, int64_t o) { return at(dy, r, o) * at(weight, i, o); });
}

void weight_gradient(const Tensor& dweight, const Tensor& x, const Tensor& dy) {
  fill_with_sums(dweight, x.size(0),
                 [&](int64_t i, int64_t o, int64_t r) { return at(x, r, i) * at(dy, r, o); });
}

void bias_gradient(const Tensor& dbias, const Tensor& dy) {
  const Tensor as_row = dbias.view({1, dbias.elements()});
  fill_with_sums(as_row, dy.size(0), [&](int64_t, int64_t o, int64_t r) { return at(dy, r, o); });
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const InUse in_use({&x, &weight, &bias});
  const Tensor y = Tensor::empty({x.size(0), weight.size(1)});
  multiply(y, x, weight, bias);
  return record(operation, y, {x, weight, bias},
                [x = saved(x), weight = saved(weight)](const Tensor& dy, InputGradients& grads) {
                  const bool for_x = grads.wanted(0);
                  const bool for_weight = grads.wanted(1);
                  // db needs neither x nor the weight: the derivative dy/db is 1.
                  const InUse in_backward({for_weight ? &x : nullptr, for_x ? &weight : nullptr});
                  if (for_x) input_gradient(grads.destination(0), dy, weight);
                  if (for_weight) weight_gradient(grads.destination(1), x, dy);
                  if (grads.wanted(2)) bias_gradient(grads.destination(2), dy);
                });
}

void on_complete(nn::Module& model, std::function<void(const std::string& name)> call) {
  for (const nn::NamedParameter& named : model.named_parameters()) {
    named.parameter.leaf().gradient_complete = [call, name = named.name] { call(name); };
  }
}

}  // namespace course
