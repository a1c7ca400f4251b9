// Reads a folder that has one folder of JPEG and PNG files for each class, as torchvision's
// ImageFolder does. Classes and files are in the order of their names (as bytes). Names that begin
// with a dot are left out. Files are decoded when they are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/images/image_set.h"

namespace tessera::data {

/// Returns the entries of the folder `path`, in no particular order. If it cannot be read, throws
/// InputError, or Error if the reason is the machine, such as a failing disk (fail_to_open in
/// core/text/input_file.h).
std::vector<std::filesystem::directory_entry> entries_in(const std::string& path);
/// Returns the names of the folders in `path`, sorted, without those that begin with a dot. Throws
/// as entries_in does.
std::vector<std::string> folders_in(const std::string& path);

class FolderImages : public ImageSet {
 public:
  /// Lists the files of each class: those below path/classes[label], at any depth. Throws
  /// InputError if a class has no files, or if an entry is neither a file nor a folder. A link to
  /// one of its own parent folders is refused too. If a folder cannot be read, throws as entries_in
  /// does.
  FolderImages(const std::string& path, const std::vector<std::string>& classes);

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  int32_t label(int64_t index) const override { return files_[static_cast<size_t>(index)].label; }
  std::string name(int64_t index) const override;
  ImageView read(int64_t index, ImageMemory& memory) const override;

  struct Split;
  /// Splits the set: the last tenth of each class, but at least one image, is held out. Throws
  /// InputError if a class has only one image.
  Split hold_out() const;

 private:
  struct File {
    std::string path;  // relative to path_
    int32_t label = 0;
  };
  FolderImages(const std::string& path, std::vector<File> files);

  std::string path_;
  std::vector<File> files_;
};

struct FolderImages::Split {
  std::shared_ptr<const FolderImages> train;
  std::shared_ptr<const FolderImages> held_out;
};

}  // namespace tessera::data
