#include "core/product_tuning.h"

#include <algorithm>
#include <cstring>

#include "core/cuda/blas_lt_library.h"
#include "core/cuda/check.h"
#include "core/ops/convert.h"
#include "core/random.h"

namespace tessera::cuda {
namespace {

constexpr int most_proposals = 16;

// An algorithm replaces the first proposal only if its time is less than this fraction of the first
// proposal's time. Two measurements of one algorithm may differ by 2 %.
constexpr double worthwhile = 0.98;

/// Returns the number of elements that all matrices of an operand span, gaps included.
int64_t span_of(const Operand& x, int64_t batch) {
  return (batch - 1) * x.batch_stride + (x.columns - 1) * x.stride + x.rows;
}

// Returns random values between -1 and 1, similar to those in training. A GPU computes faster with
// zeros, so measurements with zeros would mislead.
Tensor random_values(const Context& context, int64_t elements, DType dtype) {
  constexpr int64_t most = int64_t{1} << 20;  // draws at most this many values, and repeats them
  const Tensor host = Tensor::empty({std::min(elements, most)}, DType::f32, Device{});
  RandomStream random(0, "tune", static_cast<uint64_t>(elements));
  for (float& value : host.values<float>()) value = 2 * random.uniform() - 1;
  const Tensor block = host.to(context.device);
  const Tensor result = context.workspace({elements}, dtype);
  for (int64_t begin = 0; begin < elements; begin += most) {
    const int64_t end = std::min(begin + most, elements);
    kernels::convert(context, result.flat(begin, end), block.flat(0, end - begin));
  }
  return result;
}

/// Memory for a, b, c or the bias of a product, with all matrices of the batch. The memory begins
/// at an address with exactly the given alignment, a power of two up to 256, because cuBLASLt's
/// proposals depend on the alignment. The memory has random values if `values` is true.
class Buffer {
 public:
  Buffer(const Context& context, int64_t elements, DType dtype, int64_t alignment, bool values) {
    const int64_t offset = alignment % 256 / dtype_size(dtype);
    memory_ = values ? random_values(context, elements + offset, dtype)
                     : context.workspace({elements + offset}, dtype);
    begin_ = memory_.flat(offset, offset + elements);
  }
  void* data() const { return begin_.raw(); }

 private:
  Tensor memory_, begin_;
};

class TimedEvent {
 public:
  TimedEvent() { TESSERA_CUDA(cudaEventCreate(&event_)); }
  ~TimedEvent() { (void)cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  void record(const Context& context) {
    TESSERA_CUDA(cudaEventRecord(event_, static_cast<cudaStream_t>(context.stream)));
  }
  double us_since(const TimedEvent& begin) const {
    float ms = 0;
    TESSERA_CUDA(cudaEventSynchronize(event_));
    TESSERA_CUDA(cudaEventElapsedTime(&ms, begin.event_, event_));
    return 1e3 * ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Returns the time of one call of `launch` in microseconds, the least of three averages. Each
/// average is over the calls of about 10 ms, but over at least 1 and at most 100 calls.
template <class Launch>
double time_us(const Context& context, Launch&& launch) {
  TimedEvent begin, end;
  const auto average = [&](int calls) {
    begin.record(context);
    for (int i = 0; i < calls; ++i) launch();
    end.record(context);
    return end.us_since(begin) / calls;
  };
  average(1);  // the first call loads the kernel
  const double once = average(1);
  const int calls = static_cast<int>(std::clamp(10'000 / std::max(once, 1.0), 1.0, 100.0));
  return std::min({average(calls), average(calls), average(calls)});
}

AlgorithmBytes bytes_of(const Algorithm& algorithm) {
  AlgorithmBytes bytes;
  std::memcpy(bytes.data(), &algorithm.algorithm, sizeof bytes);
  return bytes;
}

std::map<ProductShape, Algorithm> checked(const Library& library,
                                          const std::vector<TunedProduct>& products) {
  std::map<ProductShape, Algorithm> algorithms;
  for (const auto& [shape, bytes] : products) {
    try {
      algorithms[shape] = library.checked(shape, bytes);
    } catch (const Error& error) {
      fail("the algorithm for the product of {} x {} x {}: {}", shape.m, shape.n, shape.k,
           error.what());
    }
  }
  return algorithms;
}

}  // namespace

int64_t product_library_version() { return static_cast<int64_t>(cublasLtGetVersion()); }

std::vector<ProductShape> computed_products(int device) { return library_of(device).shapes(); }

MeasuredProduct measure_product(const Context& context, const ProductShape& shape) {
  Product product = product_of(shape);
  const auto buffer = [&](const Operand& x, DType dtype, int64_t alignment, bool values) {
    return Buffer(context, span_of(x, shape.batch), dtype, alignment, values);
  };
  const Buffer a = buffer(product.second, shape.dtype, shape.a.alignment, true);
  const Buffer b = buffer(product.first, shape.dtype, shape.b.alignment, true);
  const Buffer c = buffer(product.result, shape.c_dtype, shape.c.alignment, false);
  const Buffer bias(context, shape.n, shape.dtype, shape.bias_alignment, true);
  product.second.data = a.data();
  product.first.data = b.data();
  product.result.data = c.data();
  if (product.bias) product.bias = bias.data();

  const Library& library = library_of(context.device.index);
  Descriptors descriptors = describe(product);
  MeasuredProduct measured{.fastest = {.shape = shape}};
  for (const Algorithm& algorithm : library.proposals(product, descriptors, most_proposals)) {
    const double us = time_us(context, [&] {
      library.multiply(context, product, descriptors, algorithm, false);
    });
    const bool is_first = measured.proposals++ == 0;
    if (is_first) measured.first_us = us;
    if (is_first || (us < worthwhile * measured.first_us && us < measured.fastest_us)) {
      measured.fastest.algorithm = bytes_of(algorithm);
      measured.fastest_us = us;
    }
  }
  TESSERA_CHECK(measured.proposals > 0, "cublasLt: no algorithm for a product of {} x {} x {}",
                shape.m, shape.n, shape.k);
  return measured;
}

void check_tuned_products(int device, const std::vector<TunedProduct>& products) {
  checked(library_of(device), products);
}

void use_tuned_products(int device, const std::vector<TunedProduct>& products) {
  Library& library = library_of(device);
  library.use(checked(library, products));
}

}  // namespace tessera::cuda
