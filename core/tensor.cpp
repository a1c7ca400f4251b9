#include "core/tensor.h"

#include <cstring>

#include "core/autograd.h"
#include "core/cuda.h"

namespace tessera {

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device, Category category) {
  Tensor result = unallocated(shape, dtype);
  result.impl_->storage = allocate(result.bytes(), category, device);
  return result;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device, Category category) {
  Tensor result = empty(shape, dtype, device, category);
  if (result.bytes() == 0) return result;
  if (device.is_cpu()) {
    std::memset(result.raw(), 0, static_cast<size_t>(result.bytes()));
  } else {
    cuda::zero(device.index, result.raw(), result.bytes());
  }
  return result;
}

Tensor Tensor::full(const Shape& shape, float value) {
  const std::vector<float> values(static_cast<size_t>(shape.elements()), value);
  return from(shape, values);
}

Tensor Tensor::unallocated(const Shape& shape, DType dtype) {
  Tensor result;
  result.impl_ = std::make_shared<Impl>();
  result.impl_->shape = shape;
  result.impl_->dtype = dtype;
  return result;
}

Device Tensor::device() const {
  return impl().storage ? impl().storage->device() : default_device();
}

void* Tensor::raw() const {
  if (impl().storage == nullptr) {
    const Leaf* const leaf = impl().leaf.get();
    // An optimizer sets about_to_be_used for every parameter, and look_up only for row-sparse
    // tables. So look_up is checked first.
    TESSERA_CHECK(!leaf || !leaf->look_up,
                  "tensor: no rank holds the whole row-sparse table '{}' (ZeRO stage 3); "
                  "ZeroOptimizer::for_each_parameter reads it",
                  leaf->name);
    TESSERA_CHECK(!leaf || !leaf->about_to_be_used,
                  "tensor: parameter '{}' has memory only while an operation uses it (ZeRO stage "
                  "3); ZeroOptimizer::for_each_parameter reads parameters outside of operations",
                  leaf->name);
    fail("tensor: shape {} has no memory yet (lay the parameters out first: materialize, or an "
         "optimizer)",
         shape());
  }
  return static_cast<std::byte*>(impl().storage->data()) + impl().offset_bytes;
}

float Tensor::item() const {
  TESSERA_CHECK(elements() == 1, "item: tensor has shape {}, expected one element", shape());
  if (device().is_cpu()) return *data<float>();
  cuda::refuse_in_capture("item");
  float value = 0;
  cuda::copy_and_wait(device().index, &value, data<float>(), sizeof(value));
  return value;
}

Tensor Tensor::to(Device device, Category category) const {
  if (device == this->device()) return *this;
  Tensor result = empty(shape(), dtype(), device, category);
  result.copy_from(*this);
  return result;
}

void Tensor::copy_from(const Tensor& source) const {
  TESSERA_CHECK(elements() == source.elements() && dtype() == source.dtype(),
                "copy_from: the source is {} {}, expected {} {}", dtype_name(source.dtype()),
                source.shape(), dtype_name(dtype()), shape());
  if (bytes() == 0 || raw() == source.raw()) return;
  if (device().is_cpu() && source.device().is_cpu()) {
    // The tensors may be overlapping views of the same memory, for which memcpy is undefined.
    std::memmove(raw(), source.raw(), static_cast<size_t>(bytes()));
  } else {
    cuda::refuse_in_capture("copy_from");
    // A copy between two GPUs is made on the stream of this tensor's GPU. This stream does not wait
    // for the source's GPU, so the host waits for that GPU first.
    const bool between_gpus = !device().is_cpu() && !source.device().is_cpu();
    if (between_gpus && device() != source.device()) cuda::synchronize(source.device().index);
    const int index = device().is_cpu() ? source.device().index : device().index;
    cuda::copy_and_wait(index, raw(), source.raw(), bytes());
  }
}

void Tensor::copy_from_host(const void* values) const {
  if (bytes() == 0) return;
  if (device().is_cpu()) {
    std::memcpy(raw(), values, static_cast<size_t>(bytes()));
  } else {
    cuda::refuse_in_capture("Tensor::from");
    cuda::copy_and_wait(device().index, raw(), values, bytes());
  }
}

void Tensor::check_host_access() const {
  if (device().is_cpu() || bytes() == 0) return;
  TESSERA_CHECK(cuda::memory_is_shared_with_host(),
                "tensor: the values of shape {} are on {}, expected on the host; to() copies them",
                shape(), device().to_string());
  cuda::refuse_in_capture("values");
  cuda::synchronize(device().index);
}

Tensor Tensor::view(const Shape& shape) const {
  TESSERA_CHECK(shape.elements() == elements(), "view: {} elements cannot have shape {}",
                elements(), shape);
  Tensor result = detach();
  result.impl_->shape = shape;
  return result;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  TESSERA_CHECK(rank() > 0 && 0 <= begin && begin <= end && end <= size(0),
                "rows: [{}, {}) is outside shape {}", begin, end, shape());
  Shape shape{end - begin};
  int64_t row_elements = 1;
  for (int i = 1; i < rank(); ++i) {
    shape.push_back(size(i));
    row_elements *= size(i);
  }
  Tensor result = detach();
  result.impl_->shape = shape;
  result.impl_->offset_bytes += begin * row_elements * dtype_size(dtype());
  return result;
}

Tensor Tensor::flat(int64_t begin, int64_t end) const {
  TESSERA_CHECK(0 <= begin && begin <= end && end <= elements(),
                "flat: [{}, {}) is outside {} elements", begin, end, elements());
  return view({elements()}).rows(begin, end);
}

Tensor Tensor::detach() const {
  Tensor result = unallocated(shape(), dtype());
  result.impl_->storage = impl().storage;
  result.impl_->offset_bytes = impl().offset_bytes;
  return result;
}

void Tensor::attach(std::shared_ptr<Storage> storage, int64_t offset_bytes) {
  TESSERA_CHECK(impl_ != nullptr, "attach: the tensor has no shape");
  TESSERA_CHECK(!storage || (offset_bytes >= 0 && offset_bytes + bytes() <= storage->bytes()),
                "attach: {} bytes at offset {} exceed a block of {} bytes", bytes(), offset_bytes,
                storage->bytes());
  impl_->storage = std::move(storage);
  impl_->offset_bytes = offset_bytes;
}

void Tensor::set_dtype(DType dtype) {
  TESSERA_CHECK(impl_ != nullptr, "set_dtype: the tensor has no shape");
  TESSERA_CHECK(!impl_->storage, "set_dtype: the tensor already has memory, as {}",
                dtype_name(impl_->dtype));
  impl_->dtype = dtype;
}

bool Tensor::requires_grad() const {
  return impl_ && (impl_->producer || (impl_->leaf && impl_->leaf->trainable));
}

void Tensor::set_producer(std::shared_ptr<Node> producer, int output_index) {
  TESSERA_CHECK(impl_ != nullptr, "set_producer: the tensor has no shape");
  impl_->producer = std::move(producer);
  impl_->output_index = output_index;
}

void Tensor::set_leaf(std::shared_ptr<Leaf> leaf) {
  TESSERA_CHECK(impl_ != nullptr, "set_leaf: the tensor has no shape");
  impl_->leaf = std::move(leaf);
}

void Tensor::set_recompute(Recompute recompute) {
  TESSERA_CHECK(impl_ != nullptr, "set_recompute: the tensor has no shape");
  impl_->recompute = std::make_shared<const Recompute>(std::move(recompute));
}

}  // namespace tessera
