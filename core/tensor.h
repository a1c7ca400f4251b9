// A Tensor is a handle on a contiguous, row-major array: storage, offset, shape, dtype, device.
// Copying a Tensor copies the handle. There are no strides: a view is a reshape or a slice of the
// leading dimension. Operations that can transpose an operand have an argument for this.
//
//   Tensor x = Tensor::from<float>({2, 3}, {1, 2, 3, 4, 5, 6});
//   float* values = x.data<float>();
//
// Autograd records the operations of namespace ops (such as those in core/ops.h), and no member
// function of Tensor. For example, x.view and x.rows return tensors that share memory with x but
// have no history: no gradient flows through them to x.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/memory.h"
#include "core/shape.h"

namespace tessera {

struct Node;
struct Leaf;

class Tensor {
 public:
  Tensor() = default;

  /// Returns a tensor with uninitialised memory of the given category.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32,
                      Device device = default_device(),
                      Category category = Category::activations);
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32,
                      Device device = default_device(),
                      Category category = Category::activations);
  static Tensor full(const Shape& shape, float value);

  /// Returns a tensor on the default device with a copy of `values`. There must be as many values
  /// as the shape has elements.
  template <class T>
  static Tensor from(const Shape& shape, std::span<const T> values);
  template <class T>
  static Tensor from(const Shape& shape, const std::vector<T>& values) {
    return from(shape, std::span<const T>(values));
  }
  template <class T>
  static Tensor from(const Shape& shape, std::initializer_list<T> values) {
    return from(shape, std::span<const T>(values.begin(), values.size()));
  }

  /// Returns a tensor without memory, such as a parameter before the parameters are laid out.
  static Tensor unallocated(const Shape& shape, DType dtype);

  bool defined() const { return impl_ != nullptr; }
  bool allocated() const { return impl_ && impl_->storage != nullptr; }
  const Shape& shape() const { return impl().shape; }
  int rank() const { return shape().rank(); }
  int64_t size(int dim) const { return shape()[dim]; }
  int64_t elements() const { return shape().elements(); }
  DType dtype() const { return impl().dtype; }
  /// Returns the device of the tensor's memory, or the default device if the tensor has no memory.
  Device device() const;
  int64_t bytes() const { return elements() * dtype_size(dtype()); }
  const std::shared_ptr<Storage>& storage() const { return impl().storage; }

  /// Returns the address of the first element. Throws if the tensor has no memory.
  void* raw() const;
  /// Returns the address of the first element. Throws if the dtype does not store T, or if the
  /// tensor has no memory.
  template <class T>
  T* data() const;
  /// Returns the elements, for the host to read and write. Throws for a tensor on CUDA, unless CUDA
  /// memory is shared with the host, as in some tests. to_host() copies a tensor from CUDA.
  template <class T>
  std::span<T> values() const {
    check_host_access();
    return {data<T>(), static_cast<size_t>(elements())};
  }
  /// Returns the value of an f32 tensor with one element. For a tensor on CUDA the host waits.
  /// Throws for another dtype or another number of elements.
  float item() const;

  /// Returns a view of the same memory with another shape, which must have as many elements.
  Tensor view(const Shape& shape) const;
  /// Returns rows [begin, end) of the leading dimension, as a view of the same memory.
  Tensor rows(int64_t begin, int64_t end) const;
  /// Returns elements [begin, end) as a flat tensor, a view of the same memory.
  Tensor flat(int64_t begin, int64_t end) const;
  /// Returns a copy on `device` in the given category, or the tensor itself if it is on `device`
  /// already. Waits for the device. Not recorded by autograd.
  Tensor to(Device device, Category category = Category::activations) const;
  /// Returns the tensor itself if it is in host memory, else a copy on the host.
  Tensor to_host() const { return device().is_cpu() ? *this : to(Device{}); }
  /// Overwrites the values with those of `source`, which has equally many elements of the same
  /// dtype, on any device. Waits for the devices. Not recorded by autograd.
  void copy_from(const Tensor& source) const;
  /// Returns a view of the same memory without history.
  Tensor detach() const;

  /// Makes the tensor use the memory of `storage` from offset_bytes on. With nullptr, the tensor
  /// has no memory. The change applies to all handles of the tensor.
  void attach(std::shared_ptr<Storage> storage, int64_t offset_bytes);
  /// Changes the dtype of the tensor, for all its handles. Throws if the tensor has memory.
  void set_dtype(DType dtype);

  // The tensor's history, that is, the recorded operation that made it (core/autograd.h).
  /// True for the result of a recorded operation, and for a parameter that is not frozen.
  bool requires_grad() const;
  const std::shared_ptr<Node>& producer() const { return impl().producer; }
  int output_index() const { return impl().output_index; }
  const std::shared_ptr<Leaf>& leaf() const { return impl().leaf; }
  void set_producer(std::shared_ptr<Node> producer, int output_index);
  void set_leaf(std::shared_ptr<Leaf> leaf);
  /// A function that computes the tensor's value again. recompute() returns nullptr if the tensor
  /// has no such function.
  using Recompute = std::function<Tensor()>;
  const std::shared_ptr<const Recompute>& recompute() const { return impl().recompute; }
  void set_recompute(Recompute recompute);

  /// True if this object and `other` are handles on one tensor. False for two tensors that share
  /// memory.
  bool same(const Tensor& other) const { return impl_ == other.impl_; }
  /// True if no other handle or view shares the tensor's memory.
  bool unique() const { return impl_ && impl_.use_count() == 1 && impl_->storage.use_count() == 1; }

 private:
  struct Impl {
    std::shared_ptr<Storage> storage;
    int64_t offset_bytes = 0;
    Shape shape;
    DType dtype = DType::f32;
    std::shared_ptr<Node> producer;  // the recorded operation that made the tensor, or null
    int output_index = 0;
    std::shared_ptr<Leaf> leaf;  // for a parameter: its node in the graph; otherwise null
    std::shared_ptr<const Recompute> recompute;
  };

  const Impl& impl() const {
    TESSERA_CHECK(impl_ != nullptr, "tensor: used before it was given a value");
    return *impl_;
  }

  void check_host_access() const;
  void copy_from_host(const void* values) const;

  std::shared_ptr<Impl> impl_;
};

template <class T>
T* Tensor::data() const {
  TESSERA_CHECK(dtype() == dtype_of<T>, "tensor: dtype is {}, but its data are read as {}",
                dtype_name(dtype()), dtype_name(dtype_of<T>));
  return static_cast<T*>(raw());
}

template <class T>
Tensor Tensor::from(const Shape& shape, std::span<const T> values) {
  TESSERA_CHECK(static_cast<int64_t>(values.size()) == shape.elements(),
                "tensor: {} values for shape {}", values.size(), shape);
  Tensor result = empty(shape, dtype_of<T>);
  result.copy_from_host(values.data());
  return result;
}

}  // namespace tessera
