// The description of the weights that --eval-only evaluates, or from which a run resumes. An
// evaluation has to prepare the data as the training of the weights did: with the same size and
// normalisation of images, mean of ratings, and classes. A resumed run needs only one value of the
// description, the size of images.
#pragma once

#include <string>

#include "apps/cli/resume.h"
#include "apps/cli/run_options.h"
#include "nn/safetensors.h"

namespace tessera::apps {

/// The metadata of saved weights. A file that another program wrote may have none.
struct SavedWeights {
  std::string path;  // the file of weights, or the folder of a checkpoint
  nn::SafetensorsMetadata metadata;
};

/// Returns the metadata of the checkpoint if the run has found one, else the metadata of the file
/// of --init. Call this only if there is a checkpoint or --init is given; --eval-only requires one
/// of these two. Throws InputError if the file cannot be read.
SavedWeights saved_weights(const RunOptions& options, const Resumed& resumed);

}  // namespace tessera::apps
