// Measures cuBLASLt's algorithms for the matrix products of a GPT. The program `tune` writes the
// result to a file. train_gpt can measure before its first step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/product_tuning.h"
#include "dist/bootstrap.h"
#include "models/gpt/gpt.h"

namespace tessera::train {

/// The settings that determine the matrix products of a micro-step.
struct GptProducts {
  models::GptConfig model;
  DType dtype = DType::f32;
  int64_t micro_batch = 0;
};

/// On every rank, runs a micro-step of a model with one layer. One layer is enough, because the
/// products of all layers have the same shapes. Then rank 0 times the algorithms for each product.
/// Returns the measured products on rank 0, and an empty list on other ranks. Must be called after
/// the devices are chosen, on CUDA. Collective.
std::vector<cuda::MeasuredProduct> measure_gpt_products(const GptProducts& products,
                                                        dist::World& world);

/// Measures the products, and makes all ranks use rank 0's table of algorithms (tuned_file.h).
/// Collective.
void tune_gpt(const GptProducts& products, dist::World& world);

}  // namespace tessera::train
