#include "core/cpu/onednn.h"

#include <array>
#include <cstddef>
#include <memory>
#include <unordered_map>

#include "core/cpu/onednn_library.h"
#include "core/cpu/primitive_cache.h"
#include "core/memory.h"

namespace tessera::cpu::onednn {
namespace {

/// Everything that a primitive depends on: the key of the cache.
struct Problem {
  int64_t batch, m, n, k;
  int64_t a_row, a_column, a_batch;
  int64_t b_row, b_column, b_batch;
  int64_t c_row, c_batch;
  int64_t dtype, c_dtype, threads, has_bias, accumulate;

  bool operator==(const Problem&) const = default;
};

struct Product {
  dnnl::primitive primitive;
  int64_t scratchpad_bytes = 0;
  std::unordered_map<int, dnnl::memory> arguments;
};

dnnl::memory::desc describe(const Problem& p, int64_t dtype, int64_t rows, int64_t columns,
                            std::array<int64_t, 3> strides) {
  const auto type = data_type(static_cast<DType>(dtype));
  if (p.batch == 1) {
    return TESSERA_ONEDNN(dnnl::memory::desc({rows, columns}, type, {strides[1], strides[2]}));
  }
  // A batch stride of 0 means one matrix for the whole batch: oneDNN broadcasts an extent of 1.
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

Problem problem_of(const ProductArgs& args, int threads) {
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

// One cache per thread, because every call sets the addresses in a primitive's memory objects. The
// threads' primitives for one problem share their generated code inside oneDNN.
PrimitiveCache<Problem, Product>& products() {
  thread_local PrimitiveCache<Problem, Product> own;
  return own;
}

Product& find_product(const Problem& problem) { return products().find(problem, make_product); }

}  // namespace

bool has_instructions_for(DType dtype) {
  if (dtype == DType::f32) return true;
  // An instruction set's value contains the bits of the sets that it includes.
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto bf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return dtype == DType::bf16 && (isa & bf16) == bf16;
}

void multiply(const ProductArgs& args, const GemmOptions& options) {
  const TeamSize team(options.threads);
  Product& product = find_product(problem_of(args, options.threads));
  const auto set = [&](int name, const void* data) {
    TESSERA_ONEDNN(product.arguments.at(name).set_data_handle(const_cast<void*>(data)));
  };
  set(DNNL_ARG_SRC, args.a.data);
  set(DNNL_ARG_WEIGHTS, args.b.data);
  set(DNNL_ARG_DST, args.c.data);
  if (args.bias) set(DNNL_ARG_BIAS, args.bias);
  std::shared_ptr<Storage> scratchpad;
  if (product.scratchpad_bytes > 0) {
    if (!options.workspace) {
      scratchpad = allocate(product.scratchpad_bytes, Category::workspace, options.device);
    }
    set(DNNL_ARG_SCRATCHPAD, scratchpad ? scratchpad->data() : options.workspace);
  }
  TESSERA_ONEDNN(product.primitive.execute(stream(), product.arguments));
}

int64_t scratchpad_bytes(const ProductArgs& args, int threads) {
  const TeamSize team(threads);
  return find_product(problem_of(args, threads)).scratchpad_bytes;
}

int64_t kept_products() { return products().size(); }

}  // namespace tessera::cpu::onednn
