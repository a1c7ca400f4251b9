// Everything that a program which trains or runs a model includes.
#pragma once

#include "core/ops.h"
#include "core/recompute.h"
#include "core/tensor.h"
#include "dist/bootstrap.h"
#include "models/gpt.h"
#include "nn/layers.h"
#include "nn/safetensors.h"
#include "nn/transformer.h"
#include "optim/zero_optimizer.h"
