// Opens the data of a run of train_resnet, compares them over ranks, and prepares them for the
// weights that the run begins with.
#pragma once

#include "apps/cli/resume.h"
#include "apps/train_resnet_options.h"
#include "data/images/image_data.h"
#include "dist/bootstrap.h"
#include "models/image/image_model.h"

namespace tessera::apps {

/// Opens the images of --data. Throws InputError if they cannot be read, or are not square. Images
/// of a folder need not be square, because they are resized.
data::ImageData open_data(const ImageTrainOptions& options);

/// Throws InputError if the ranks' data differ. With --verify-data, reads every image, even if
/// there is only one rank. Collective.
void check_data(const dist::World& world, const ImageTrainOptions& options,
                const data::ImageData& data);

/// Without --image-size, gives the images of a folder the size for which the weights of --init were
/// trained. Must be called after check_data. Otherwise, if only one rank lacked the file, the sizes
/// would differ, and check_data would report a difference of --data. A missing file is not an error
/// here: a resumed run takes the size from its checkpoint (prepare_data), and a new run reports the
/// missing file later. Throws InputError if the file is there but cannot be read.
void take_size_of_init(const ImageTrainOptions& options, data::ImageData& data);

models::ImageSizes sizes_of(const data::ImageData& data);

/// Returns the description of the model for the metadata of its weights.
models::ImageModel description_of(const ImageTrainOptions& options, const data::ImageData& data);

/// Prepares the data for the weights of the checkpoint or, with --eval-only and without a
/// checkpoint, for those of --init, if their metadata describe a model. Without --image-size,
/// images of a folder are resized to the size in the metadata. With --eval-only, images are also
/// normalised as in the training, and data with other class names are refused. Data with another
/// number of classes or channels are refused later, because the weights do not fit.
void prepare_data(const ImageTrainOptions& options, const Resumed& resumed, data::ImageData& data);

}  // namespace tessera::apps
