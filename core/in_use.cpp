#include "core/autograd.h"
#include "core/error.h"

namespace tessera {

InUse::InUse(std::initializer_list<const Tensor*> tensors) : InUse() {
  for (const Tensor* tensor : tensors) {
    if (tensor == nullptr || !tensor->defined()) continue;
    const std::shared_ptr<Leaf> leaf = tensor->leaf();
    if (leaf && leaf->about_to_be_used) leaf->about_to_be_used();
    if (leaf && leaf->no_longer_used) leaves_.push_back(leaf);
  }
  check_one_device(tensors);
}

InUse::~InUse() {
  for (const auto& leaf : leaves_) leaf->no_longer_used();
}

void check_one_device(std::initializer_list<const Tensor*> tensors) {
  const Tensor* first = nullptr;
  for (const Tensor* tensor : tensors) {
    if (tensor == nullptr || !tensor->defined()) continue;
    if (first == nullptr) first = tensor;
    // Without this check, a GPU kernel that reads host memory may end in an illegal access. All CPU
    // devices have host memory, so their tensors may be used together.
    const bool both_on_host = tensor->device().is_cpu() && first->device().is_cpu();
    TESSERA_CHECK(both_on_host || tensor->device() == first->device(),
                  "operands of shapes {} and {} are on {} and {}, expected one device",
                  first->shape(), tensor->shape(), first->device().to_string(),
                  tensor->device().to_string());
  }
}

}  // namespace tessera
