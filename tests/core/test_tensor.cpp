// Tests tensors as handles: views, tensors without elements or without memory, and error messages.
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "core/autograd.h"
#include "core/cuda.h"
#include "core/tensor.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("shapes know their extents") {
  const Shape scalar;
  CHECK(scalar.rank() == 0);
  CHECK(scalar.elements() == 1);
  CHECK_THROWS_WITH(scalar[0], ContainsSubstring("no dimension 0 in rank 0"));
  CHECK_THROWS_WITH(scalar.with_last(1), ContainsSubstring("a scalar has no last dimension"));

  const Shape shape{2, 3, 4};
  CHECK(shape.rank() == 3);
  CHECK(shape.elements() == 24);
  CHECK(shape[0] == 2);
  CHECK(shape[-1] == 4);
  CHECK(shape[-3] == 2);
  CHECK_THROWS_WITH(shape[3], ContainsSubstring("no dimension 3 in rank 3"));
  CHECK_THROWS_WITH(shape[-4], ContainsSubstring("no dimension -4 in rank 3"));
  CHECK(shape.with_last(7) == Shape{2, 3, 7});
  CHECK(shape == Shape{2, 3, 4});
  CHECK_FALSE(shape == Shape{2, 12});
  CHECK_FALSE(Shape{1} == Shape{});
  CHECK(Shape{3, 0, 5}.elements() == 0);
  const int64_t large = int64_t{1} << 60;
  CHECK(Shape{large, 0}.elements() == 0);
  CHECK(Shape{0, large}.elements() == 0);
  CHECK(Shape{large, large, 0}.elements() == 0);
}

TEST_CASE("invalid shapes are errors") {
  CHECK_THROWS_WITH((Shape{2, -1}), ContainsSubstring("extent -1 is negative"));
  CHECK_THROWS_WITH((Shape{2, 3}.with_last(-4)), ContainsSubstring("extent -4 is negative"));
  CHECK_THROWS_WITH((Shape{1, 1, 1, 1, 1, 1}),
                    ContainsSubstring("6 dimensions, expected at most 5"));
  Shape full{1, 1, 1, 1, 1};
  CHECK_THROWS_WITH(full.push_back(1), ContainsSubstring("more than 5 dimensions"));
  const int64_t large = int64_t{1} << 40;
  CHECK_THROWS_WITH((Shape{large, large}.elements()),
                    ContainsSubstring("[1099511627776, 1099511627776] has more than 2^59"));
  // int64_t can count 2^60 elements, but not the bytes of 2^60 i64 values.
  CHECK_THROWS_WITH(Shape{int64_t{1} << 60}.elements(), ContainsSubstring("more than 2^59"));
}

TEST_CASE("tensors hold the values they were made from") {
  const Tensor x = Tensor::from<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(x.defined());
  CHECK(x.allocated());
  CHECK(x.rank() == 2);
  CHECK(x.size(-1) == 3);
  CHECK(x.elements() == 6);
  CHECK(x.bytes() == 24);
  CHECK(x.dtype() == DType::f32);
  CHECK(x.device() == default_device());
  CHECK_FALSE(x.requires_grad());
  CHECK(x.values<float>()[4] == 5);

  const Tensor zeros = Tensor::zeros({5}, DType::i64);
  CHECK(zeros.bytes() == 40);
  for (const int64_t value : zeros.values<int64_t>()) CHECK(value == 0);
  const Tensor full = Tensor::full({7}, 2.5f);
  for (const float value : full.values<float>()) CHECK(value == 2.5f);
  CHECK(Tensor::full({1, 1}, 3).item() == 3);
  CHECK(Tensor::full({}, 4).item() == 4);

  const std::vector<uint8_t> bytes{0, 255};
  CHECK(Tensor::from<uint8_t>({2}, bytes).values<uint8_t>()[1] == 255);
}

TEST_CASE("copies of a tensor are handles to the same memory") {
  const Tensor x = Tensor::zeros({3});
  const Tensor y = x;
  y.data<float>()[1] = 7;
  CHECK(x.data<float>()[1] == 7);
}

TEST_CASE("views share memory") {
  const Tensor x = Tensor::from<int32_t>({3, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});

  const Tensor flat = x.view({12});
  CHECK(flat.raw() == x.raw());
  CHECK(flat.storage() == x.storage());
  CHECK(x.view({1, 3, 4, 1}).shape() == Shape{1, 3, 4, 1});

  const Tensor rows = x.rows(1, 3);
  CHECK(rows.shape() == Shape{2, 2, 2});
  CHECK(rows.values<int32_t>()[0] == 4);
  // The offset of a view of a view is the sum of both offsets.
  const Tensor last = rows.rows(1, 2).flat(2, 4);
  CHECK(last.shape() == Shape{2});
  CHECK(last.values<int32_t>()[0] == 10);
  last.data<int32_t>()[1] = -1;
  CHECK(x.values<int32_t>()[11] == -1);
  CHECK(x.flat(3, 3).elements() == 0);

  const Tensor scalar = Tensor::full({}, 9);
  CHECK(scalar.view({1, 1}).rows(0, 1).item() == 9);
  CHECK(scalar.flat(0, 1).item() == 9);

  // A view keeps the memory alive.
  Tensor half;
  {
    const Tensor whole = Tensor::full({4}, 6);
    half = whole.rows(2, 4);
  }
  CHECK(half.values<float>()[1] == 6);
}

// copy_from must not use memcpy, which is undefined for overlapping memory. Where memcpy happens to
// work, only the address sanitizer reports the error.
TEST_CASE("copy_from between overlapping views moves the values") {
  if (!test::on_cpu()) TESSERA_SKIP("overlapping copies are defined only on the CPU");
  const auto copied = [](int64_t from, int64_t to) {
    const Tensor x = Tensor::from<int32_t>({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
    x.rows(to, to + 3).copy_from(x.rows(from, from + 3));
    const auto values = x.values<int32_t>();
    return std::vector<int32_t>(values.begin(), values.end());
  };
  CHECK(copied(1, 0) == std::vector<int32_t>{2, 3, 4, 5, 6, 7, 6, 7});
  CHECK(copied(0, 1) == std::vector<int32_t>{0, 1, 0, 1, 2, 3, 4, 5});
}

TEST_CASE("views that do not fit are errors that name the shapes") {
  const Tensor x = Tensor::zeros({2, 3});
  CHECK_THROWS_WITH(x.view({4}), ContainsSubstring("6 elements cannot have shape [4]"));
  CHECK_THROWS_WITH(x.rows(1, 3), ContainsSubstring("[1, 3) is outside shape [2, 3]"));
  CHECK_THROWS_WITH(x.rows(-1, 1), ContainsSubstring("[-1, 1) is outside"));
  CHECK_THROWS_WITH(x.rows(2, 1), ContainsSubstring("[2, 1) is outside"));
  CHECK_THROWS_WITH(Tensor::zeros({}).rows(0, 1), ContainsSubstring("is outside shape []"));
  CHECK_THROWS_WITH(x.flat(0, 7), ContainsSubstring("[0, 7) is outside 6 elements"));
  CHECK_THROWS_WITH(x.item(), ContainsSubstring("shape [2, 3], expected one element"));
  CHECK_THROWS_WITH(x.data<int32_t>(),
                    ContainsSubstring("dtype is f32, but its data are read as i32"));
  CHECK_THROWS_WITH(Tensor::from<float>({2, 2}, {1, 2, 3}),
                    ContainsSubstring("3 values for shape [2, 2]"));
}

TEST_CASE("tensors without elements work") {
  const Tensor x = Tensor::zeros({0, 3});
  CHECK(x.allocated());
  CHECK(x.bytes() == 0);
  CHECK(x.values<float>().empty());
  CHECK(x.rows(0, 0).shape() == Shape{0, 3});
  CHECK(x.view({3, 0}).shape() == Shape{3, 0});
  CHECK(Tensor::zeros({4, 0}).rows(1, 3).shape() == Shape{2, 0});
  CHECK(Tensor::from<float>({0}, std::vector<float>{}).elements() == 0);
  CHECK(Tensor::from<int32_t>({2, 0}, {}).shape() == Shape{2, 0});
  CHECK(Tensor::full({2, 0}, 1).elements() == 0);
  CHECK_THROWS_WITH(x.item(), ContainsSubstring("shape [0, 3], expected one element"));
}

TEST_CASE("a tensor without memory has a shape, and reading it is an error") {
  Tensor x = Tensor::unallocated({2, 2}, DType::f32);
  const Tensor other = x;
  CHECK(x.defined());
  CHECK_FALSE(x.allocated());
  CHECK(x.bytes() == 16);
  CHECK(x.device() == default_device());
  CHECK_THROWS_WITH(x.raw(), ContainsSubstring("shape [2, 2] has no memory yet"));
  CHECK_THROWS_WITH(x.values<float>(), ContainsSubstring("materialize"));

  // The error message depends on which hooks an optimizer has set.
  Tensor parameter = Tensor::unallocated({}, DType::f32);
  parameter.set_leaf(std::make_shared<Leaf>());
  parameter.leaf()->name = "w";
  CHECK_THROWS_WITH(parameter.item(), ContainsSubstring("has no memory yet"));
  parameter.leaf()->about_to_be_used = [] {};
  CHECK_THROWS_WITH(parameter.item(),
                    ContainsSubstring("parameter 'w' has memory only while an operation uses it") &&
                        ContainsSubstring("for_each_parameter"));
  parameter.leaf()->look_up = [](const Tensor&, int64_t) { return TableRows{}; };
  CHECK_THROWS_WITH(parameter.item(),
                    ContainsSubstring("no rank holds the whole row-sparse table 'w'") &&
                        ContainsSubstring("for_each_parameter"));

  // Attaching and detaching memory must show in all handles.
  const Tensor block = Tensor::from<float>({6}, {0, 1, 2, 3, 4, 5});
  x.attach(block.storage(), 8);
  CHECK(other.allocated());
  CHECK(other.values<float>()[3] == 5);
  x.attach(nullptr, 0);
  CHECK_FALSE(other.allocated());

  CHECK_THROWS_WITH(x.attach(block.storage(), 12),
                    ContainsSubstring("16 bytes at offset 12 exceed a block of 24 bytes"));
  CHECK_THROWS_WITH(x.attach(block.storage(), -4), ContainsSubstring("at offset -4"));
}

TEST_CASE("an undefined tensor is an error wherever it is used") {
  const Tensor none;
  CHECK_FALSE(none.defined());
  CHECK_FALSE(none.allocated());
  CHECK_FALSE(none.requires_grad());
  CHECK_FALSE(none.unique());
  CHECK_THROWS_WITH(none.shape(), ContainsSubstring("used before it was given a value"));
  CHECK_THROWS_AS(none.raw(), Error);
  CHECK_THROWS_AS(none.detach(), Error);
  CHECK_THROWS_AS(none.view({1}), Error);
}

TEST_CASE("a missing device is an error") {
  const Device gpu{DeviceType::cuda, cuda::device_count()};
  const auto refused = ContainsSubstring("there is no device " + gpu.to_string());
  CHECK_THROWS_WITH(Tensor::empty({2}, DType::f32, gpu), refused);
  CHECK_THROWS_WITH(Tensor::zeros({2}, DType::f32, gpu), refused);
}

TEST_CASE("a tensor is unique if nothing else references its memory") {
  Tensor x = Tensor::zeros({4});
  CHECK(x.unique());
  {
    const Tensor handle = x;
    CHECK_FALSE(x.unique());
  }
  {
    const Tensor view = x.rows(0, 2);
    CHECK_FALSE(x.unique());
    CHECK_FALSE(view.unique());
  }
  CHECK(x.unique());
  const Tensor rest = x.flat(1, 2);
  x = Tensor();
  CHECK(rest.unique());
}

TEST_CASE("handles share a tensor's history; views and detached tensors do not") {
  Tensor x = Tensor::zeros({2});
  x.set_leaf(std::make_shared<Leaf>());
  CHECK(x.requires_grad());
  const Tensor handle = x;
  CHECK(handle.leaf() == x.leaf());
  CHECK_FALSE(x.detach().requires_grad());
  CHECK_FALSE(x.view({1, 2}).requires_grad());
  CHECK_FALSE(x.rows(0, 1).requires_grad());
  CHECK(x.detach().raw() == x.raw());
}

TEST_CASE("a tensor is the same as its handles, not as views of its memory") {
  const Tensor x = Tensor::zeros({2});
  const Tensor handle = x;
  CHECK(handle.same(x));
  CHECK_FALSE(x.view({2}).same(x));
  CHECK_FALSE(x.detach().same(x));
  CHECK_FALSE(Tensor().same(x));
  CHECK(Tensor().same(Tensor()));
}

TEST_CASE("the dtype of a tensor without memory can change") {
  Tensor x = Tensor::unallocated({3}, DType::f32);
  const Tensor handle = x;
  x.set_dtype(DType::bf16);
  CHECK(handle.dtype() == DType::bf16);
  CHECK(handle.bytes() == 6);
  x.attach(allocate(6, Category::parameters), 0);
  CHECK_THROWS_WITH(x.set_dtype(DType::f32), ContainsSubstring("already has memory, as bf16"));
  CHECK_THROWS_AS(Tensor().set_dtype(DType::f32), Error);
}
