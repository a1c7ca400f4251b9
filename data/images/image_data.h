// Opens the images that a model trains on and is evaluated on. The files at the path determine the
// format:
//
//   data_batch_*.bin, test_batch.bin    CIFAR-10, binary (class names from batches.meta.txt)
//   train.bin, test.bin                 CIFAR-100, binary (class names from fine_label_names.txt)
//   {train,t10k}-{images,labels}-...    MNIST or Fashion-MNIST, IDX, compressed or not; if only
//                                       train or only t10k is there, its last tenth is held out
//   folders of JPEG or PNG files        one folder for each class: all at the path itself, or
//                                       all in a training folder and again in a validation folder
//   no path                             pictures that the program draws (drawn_images.h)
//
// A training folder is called train/ or training/. A validation folder is called val/, valid/ or
// validation/. If none of these three exists, test/ or testing/ is the validation folder. All these
// names may have capital letters. The last tenth of each class is held out if there is no
// validation folder, or if the class folders are at the path itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/images/augment.h"
#include "data/images/image_set.h"

namespace tessera::data {

struct ImageDataOptions {
  std::string path = {};
  int64_t image_size = 0;  // height and width; 0: 224 for folders, else the images' own
  int64_t drawn_training = 10000;
  int64_t drawn_validation = 2000;
};

struct ImageData {
  std::string format;  // cifar10, cifar100, idx, folder or drawn
  std::shared_ptr<const ImageSet> train = {};
  std::shared_ptr<const ImageSet> validation = {};
  std::vector<std::string> class_names = {};
  /// For folders of images: the paths whose subfolders count as classes. Without a training folder,
  /// only the path that was opened. With a training folder, the paths of the training folder and of
  /// the validation folder, and all paths at which such a folder would be found if it were created
  /// later. The path of a folder that does not exist has the folder's name in lower case.
  std::vector<std::string> class_parents = {};
  /// Shape, normalisation and kind of augmentation. Mean and deviation are measured if the training
  /// images are in memory; folders use ImageNet's. Seed, dtype and `augments` are set by the run.
  ImageTransformOptions transform = {};

  int64_t classes() const { return static_cast<int64_t>(class_names.size()); }
  /// Example: "10,000 images of 32 x 32 x 3 in 10 classes to train on, 2,000 to validate".
  std::string description() const;
};

/// Throws InputError
///  - if a path is given that is not a folder,
///  - if the folder has none of the formats above (the message names the files looked for),
///  - if there are several folders to train on or several to validate on,
///  - if the validation folder has other classes than the training folder,
///  - if a class folder has no images, or there are too few images to hold out the last tenth,
///  - if the training or the validation folder is missing, and two folders at the path look like
///    parts of a data set: neither has files, and two or more names of subfolders occur in both,
///  - if a format's files are incomplete, or a file is malformed (JPEG and PNG files are not
///    checked here: ImageSet::read throws for them),
///  - if the training images are in memory, and a channel has the same value in all of them,
///  - if images are drawn, and drawn_training or drawn_validation is below 1,
///  - if image_size is below 0 or above most_image_side (core/image_side.h),
///  - if image_size is neither 0 nor the images' size. Images of folders are resized instead.
ImageData open_image_data(const ImageDataOptions& options);

}  // namespace tessera::data
