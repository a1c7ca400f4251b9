// Checks that a run writes no output among the images that it reads. All files in a class folder
// count as images, whatever their names are. All folders beside a class folder count as classes. So
// an output in a class folder would add or replace an image, and an output in a new folder beside
// the class folders would add a class. The same command could then not resume, because a resume
// refuses data that have changed.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/paths.h"

namespace tessera::apps {

/// Throws InputError, naming the flag, if an output or a save during the run would be in or below
/// one of these folders:
///
///   - a class folder;
///   - a new folder beside the class folders, which would count as a class;
///   - a part of the data set, such as train/.
///
/// Names that begin with a dot are not read, so an output may have such a name or be in a folder of
/// such a name. `data` is the path of the images, and `class_parents` is ImageData::class_parents.
void check_outside_classes(const GivenPaths& paths, const std::string& data,
                           const std::vector<std::string>& class_parents);

}  // namespace tessera::apps
