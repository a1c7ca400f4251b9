// Checks that the outputs of a run leave the class folders of its images as they are. Images are
// recognized by their content, whatever their names are, and each folder beside the class folders
// counts as a class. So an output in a class folder could replace an image, and an output in a new
// folder beside the class folders would make a new class. Either would change the data, so the same
// command could not resume.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/paths.h"

namespace tessera::apps {

/// Throws InputError, naming the flag, if an output or a save during the run would be in a class
/// folder, in a new folder that would count as a class, or in a part of the data set, such as
/// train/. `data` is the path of the images, and `class_parents` is ImageData::class_parents. Two
/// kinds of files are accepted, because they are not read as images: files directly beside the
/// class folders of a data set without parts, and files at paths with a name that begins with a
/// dot.
void check_outside_classes(const GivenPaths& paths, const std::string& data,
                           const std::vector<std::string>& class_parents);

}  // namespace tessera::apps
