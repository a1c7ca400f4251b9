// Implements core/product_tuning.h in a build without CUDA.
#include "core/product_tuning.h"

#include "core/cuda.h"
#include "core/error.h"

namespace tessera::cuda {

namespace {
[[noreturn]] void refuse() { fail("cuda: {}", unusable()); }
}  // namespace

int64_t product_library_version() { refuse(); }
std::vector<ProductShape> computed_products(int) { refuse(); }
MeasuredProduct measure_product(const Context&, const ProductShape&) { refuse(); }
void check_tuned_products(int, const std::vector<TunedProduct>&) { refuse(); }
void use_tuned_products(int, const std::vector<TunedProduct>&) { refuse(); }

}  // namespace tessera::cuda
