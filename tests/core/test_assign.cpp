// Tests assign, which writes f32 values to tensors of each float dtype.
#include "core/assign.h"

#include <vector>

#include "core/memory.h"
#include "tests/support/catch.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;

namespace {

float value_of(int64_t element) { return 0.37f * static_cast<float>(element % 1001 - 500); }

template <class T>
void check_values(const Tensor& tensor) {
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    if (!(tensor.data<T>()[i] == T(value_of(i)))) FAIL("element " << i);
  }
}

}  // namespace

TEST_CASE("assigned values are the source's, rounded to the tensor's dtype") {
  const int64_t pieces = 3;
  const int64_t count = pieces * assign_workspace_bytes / 4 - 6;
  const int64_t before = memory_ledger({}).current(Category::workspace);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(dtype_name(dtype));
    const Tensor tensor = Tensor::empty({count / 2, 2}, dtype, Device{});
    int64_t expected_begin = 0;
    memory_ledger({}).reset_peaks();
    assign(tensor, [&](int64_t begin, std::span<float> out) {
      CHECK(begin == expected_begin);
      for (size_t i = 0; i < out.size(); ++i) out[i] = value_of(begin + static_cast<int64_t>(i));
      expected_begin += static_cast<int64_t>(out.size());
    });
    CHECK(expected_begin == count);
    CHECK(memory_ledger({}).peak(Category::workspace) - before ==
          (dtype == DType::f32 ? 0 : assign_workspace_bytes));
    visit_float(dtype, "test", [&]<class T>() { check_values<T>(tensor); });
  }
  CHECK(memory_ledger({}).current(Category::workspace) == before);
}

TEST_CASE("assign skips the source for an empty tensor, and takes only float dtypes") {
  const auto none = [](int64_t, std::span<float>) { FAIL("the source was asked"); };
  assign(Tensor::empty({0}, DType::bf16), none);
  CHECK_THROWS_WITH(assign(Tensor::empty({2}, DType::i32), none),
                    ContainsSubstring("the tensor is i32, expected f32, bf16 or f16"));
}
