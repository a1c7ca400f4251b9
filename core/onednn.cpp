#include "core/onednn.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <unordered_map>

#include <dnnl.hpp>
#include <omp.h>

#include "core/context.h"
#include "core/error.h"
#include "core/memory.h"

namespace tessera::cpu {
namespace {

/// Runs one call of the library; its failure becomes an Error that keeps the text of the call.
template <class Call>
auto checked(const char* text, Call&& call) {
  try {
    return call();
  } catch (const dnnl::error& error) {
    fail("oneDNN: {} failed with status {}: {}", text, static_cast<int>(error.status),
         error.message);
  }
}
#define TESSERA_ONEDNN(...) checked(#__VA_ARGS__, [&] { return __VA_ARGS__; })

const dnnl::engine& engine() {
  static const dnnl::engine cpu_engine = TESSERA_ONEDNN(dnnl::engine(dnnl::engine::kind::cpu, 0));
  return cpu_engine;
}

/// All that a primitive depends on: one is made for each value and kept.
struct Problem {
  int64_t batch, m, n, k;
  int64_t a_row, a_column, a_batch;
  int64_t b_row, b_column, b_batch;
  int64_t c_row, c_batch;
  int64_t dtype, c_dtype, threads, has_bias, accumulate;

  bool operator==(const Problem&) const = default;
};

struct ProblemHash {
  size_t operator()(const Problem& problem) const {
    std::array<uint64_t, sizeof(Problem) / sizeof(uint64_t)> words;
    std::memcpy(words.data(), &problem, sizeof(Problem));
    uint64_t hash = 0;
    for (const uint64_t word : words) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

struct Product {
  dnnl::primitive primitive;
  int64_t scratchpad_bytes = 0;
  std::unordered_map<int, dnnl::memory> arguments;
};

dnnl::memory::data_type data_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return dnnl::memory::data_type::f32;
    case DType::bf16: return dnnl::memory::data_type::bf16;
    case DType::f16: return dnnl::memory::data_type::f16;
    default: fail("gemm: dtype {} is not a floating-point type", dtype_name(dtype));
  }
}

dnnl::memory::desc describe(const Problem& p, int64_t dtype, int64_t rows, int64_t columns,
                            std::array<int64_t, 3> strides) {
  const auto type = data_type(static_cast<DType>(dtype));
  if (p.batch == 1) {
    return TESSERA_ONEDNN(dnnl::memory::desc({rows, columns}, type, {strides[1], strides[2]}));
  }
  // A batch stride of 0 is a matrix that the whole batch shares: oneDNN broadcasts extent 1.
  const int64_t extent = strides[0] == 0 ? 1 : p.batch;
  const int64_t stride = strides[0] == 0 ? rows * columns : strides[0];
  return TESSERA_ONEDNN(
      dnnl::memory::desc({extent, rows, columns}, type, {stride, strides[1], strides[2]}));
}

dnnl::matmul::primitive_desc describe_product(const dnnl::memory::desc& a,
                                              const dnnl::memory::desc& b,
                                              const dnnl::memory::desc& bias,
                                              const dnnl::memory::desc& c,
                                              const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3
  return TESSERA_ONEDNN(dnnl::matmul::primitive_desc(engine(), a, b, bias, c, attributes));
#else
  return TESSERA_ONEDNN(dnnl::matmul::primitive_desc({a, b, bias, c}, attributes, engine()));
#endif
}

Product make_product(const Problem& p) {
  const auto a = describe(p, p.dtype, p.m, p.k, {p.a_batch, p.a_row, p.a_column});
  const auto b = describe(p, p.dtype, p.k, p.n, {p.b_batch, p.b_row, p.b_column});
  const auto c = describe(p, p.c_dtype, p.m, p.n, {p.c_batch, p.c_row, 1});
  dnnl::memory::desc bias;
  if (p.has_bias) bias = describe(p, p.dtype, 1, p.n, {0, p.n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.accumulate) {
    dnnl::post_ops after;
    after.append_sum(1.0f);
    attributes.set_post_ops(after);
  }
  const auto description = describe_product(a, b, bias, c, attributes);

  Product product;
  product.primitive = TESSERA_ONEDNN(dnnl::matmul(description));
  const auto add = [&](int name, const dnnl::memory::desc& desc) {
    product.arguments.emplace(name, TESSERA_ONEDNN(dnnl::memory(desc, engine(), nullptr)));
  };
  add(DNNL_ARG_SRC, a);
  add(DNNL_ARG_WEIGHTS, b);
  add(DNNL_ARG_DST, c);
  if (p.has_bias) add(DNNL_ARG_BIAS, bias);
  product.scratchpad_bytes = static_cast<int64_t>(description.scratchpad_desc().get_size());
  if (product.scratchpad_bytes > 0) add(DNNL_ARG_SCRATCHPAD, description.scratchpad_desc());
  return product;
}

/// oneDNN asks OpenMP how many threads to use, both when a primitive is made and when it runs.
class TeamSize {
 public:
  explicit TeamSize(int threads) : before_(omp_get_max_threads()) {
    if (before_ != threads) omp_set_num_threads(threads);
    changed_ = before_ != threads;
  }
  ~TeamSize() {
    if (changed_) omp_set_num_threads(before_);
  }
  TeamSize(const TeamSize&) = delete;
  TeamSize& operator=(const TeamSize&) = delete;

 private:
  int before_;
  bool changed_ = false;
};

/// What a product over k = 0 is: the bias, or zero.
void fill_without_terms(const GemmArgs& args) {
  TESSERA_CHECK(!args.bias || args.dtype == args.c_dtype, "gemm: a bias in {} for a result in {}",
                dtype_name(args.dtype), dtype_name(args.c_dtype));
  const auto bytes = static_cast<size_t>(args.n * dtype_size(args.c_dtype));
  for (int64_t row = 0; row < args.batch * args.m; ++row) {
    const int64_t offset = row / args.m * args.c.batch_stride + row % args.m * args.c.row_stride;
    std::byte* to = static_cast<std::byte*>(args.c.data) + offset * dtype_size(args.c_dtype);
    if (args.bias) {
      std::memcpy(to, args.bias, bytes);
    } else {
      std::memset(to, 0, bytes);
    }
  }
}

Problem problem_of(const GemmArgs& args, int threads) {
  return {.batch = args.batch,
          .m = args.m,
          .n = args.n,
          .k = args.k,
          .a_row = args.a.row_stride,
          .a_column = args.a.column_stride,
          .a_batch = args.a.batch_stride,
          .b_row = args.b.row_stride,
          .b_column = args.b.column_stride,
          .b_batch = args.b.batch_stride,
          .c_row = args.c.row_stride,
          .c_batch = args.c.batch_stride,
          .dtype = static_cast<int64_t>(args.dtype),
          .c_dtype = static_cast<int64_t>(args.c_dtype),
          .threads = threads,
          .has_bias = args.bias != nullptr,
          .accumulate = args.accumulate};
}

Product& find_product(const Problem& problem) {
  // Each thread keeps its own: the memory objects are rewritten by every call, and equal primitives
  // share their generated code inside oneDNN anyway.
  thread_local std::unordered_map<Problem, Product, ProblemHash> products;
  const auto found = products.find(problem);
  if (found != products.end()) return found->second;
  return products.emplace(problem, make_product(problem)).first->second;
}

void execute(const GemmArgs& args, int threads) {
  Product& product = find_product(problem_of(args, threads));
  const auto set = [&](int name, const void* data) {
    TESSERA_ONEDNN(product.arguments.at(name).set_data_handle(const_cast<void*>(data)));
  };
  set(DNNL_ARG_SRC, args.a.data);
  set(DNNL_ARG_WEIGHTS, args.b.data);
  set(DNNL_ARG_DST, args.c.data);
  if (args.bias) set(DNNL_ARG_BIAS, args.bias);
  std::shared_ptr<Storage> scratchpad;
  if (product.scratchpad_bytes > 0) {
    scratchpad = allocate(product.scratchpad_bytes, Category::workspace);
    set(DNNL_ARG_SCRATCHPAD, scratchpad->data());
  }
  thread_local dnnl::stream stream = TESSERA_ONEDNN(dnnl::stream(engine()));
  TESSERA_ONEDNN(product.primitive.execute(stream, product.arguments));
}

/// Columns [begin, begin + count) of a and rows of b: a part of the sum over k.
GemmArgs part_of(GemmArgs args, int64_t begin, int64_t count) {
  const auto advance = [&](const void* data, int64_t stride) {
    return static_cast<const std::byte*>(data) + begin * stride * dtype_size(args.dtype);
  };
  args.k = count;
  args.a.data = advance(args.a.data, args.a.column_stride);
  args.b.data = advance(args.b.data, args.b.row_stride);
  if (begin > 0) {
    args.bias = nullptr;
    args.accumulate = true;
  }
  return args;
}

// A sum over more than twice this is computed in parts: over k = 50,257 (the gradient of a language
// model's last activations) one call ran at 100 GFLOP/s, parts at 114, of 118 that the core can do.
constexpr int64_t part_terms = 4096;

}  // namespace

void gemm(const GemmArgs& args) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  if (args.k == 0) {
    if (!args.accumulate) fill_without_terms(args);
    return;
  }
  const int wanted = args.threads > 0 ? args.threads : thread_count();
  const int threads = omp_in_parallel() ? 1 : wanted;
  const TeamSize team(threads);
  // Parts are added in the type of c, so that only f32 may be cut.
  if (args.k <= 2 * part_terms || args.c_dtype != DType::f32) return execute(args, threads);
  for (int64_t begin = 0; begin < args.k; begin += part_terms) {
    execute(part_of(args, begin, std::min(part_terms, args.k - begin)), threads);
  }
}

}  // namespace tessera::cpu
