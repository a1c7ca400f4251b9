// Everything that a program which trains or runs a model includes.
#pragma once

#include "core/context.h"
#include "core/image_ops.h"
#include "core/ops.h"
#include "core/random.h"
#include "core/recompute.h"
#include "core/tensor.h"
#include "data/tokens/token_data.h"
#include "dist/bootstrap.h"
#include "models/gpt/gpt.h"
#include "models/image/resnet.h"
#include "nn/layers.h"
#include "nn/safetensors.h"
#include "nn/transformer.h"
#include "optim/plan/plan.h"
#include "optim/zero_optimizer.h"
