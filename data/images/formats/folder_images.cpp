#include "data/images/formats/folder_images.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/text/input_file.h"
#include "data/images/formats/image_file.h"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// Returns true if the link `path` leads to a folder above the link, as a link to ".." does. The
// folders above /a/b/c are /a/b, /a and /, even if /a/b is itself a link. A cycle of several links
// is found too: files_in() follows the links until one of them leads to a folder above this link.
bool leads_above(const fs::path& path) {
  std::error_code error;  // ignored: equivalent() is false if a folder cannot be examined
  fs::path above = fs::absolute(path);
  while (above.has_relative_path()) {
    above = above.parent_path();
    if (fs::equivalent(above, path, error)) return true;
  }
  return false;
}

// Returns the files below `folder`, as sorted paths relative to `folder`. Leaves out names that
// begin with a dot.
std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> files;
  const auto follow = fs::directory_options::follow_directory_symlink;
  for (auto entry = fs::recursive_directory_iterator(folder, follow);
       entry != fs::recursive_directory_iterator();) {
    const fs::path path = entry->path();
    if (hidden(path)) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file()) {
      files.push_back(path.lexically_relative(folder));
    } else if (!entry->is_directory()) {
      fail_input("{}: is neither a file nor a folder", path.string());
    } else if (entry->is_symlink() && leads_above(path)) {
      fail_input("{}: is a link to a folder above it, expected images or other folders",
                 path.string());
    }
    std::error_code error;  // operator++ would throw an exception without the path
    entry.increment(error);
    if (error) fail_with_reason(error.value(), path.string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<fs::directory_entry> entries_in(const std::string& path) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    entries.push_back(*entry);
  }
  if (error) fail_with_reason(error.value(), path);
  return entries;
}

std::vector<std::string> folders_in(const std::string& path) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : entries_in(path)) {
    std::error_code unknown;  // ignored: an entry that cannot be examined counts as no folder
    if (!entry.is_directory(unknown) || hidden(entry.path())) continue;
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

FolderImages::FolderImages(const std::string& path, std::vector<File> files)
    : path_(path), files_(std::move(files)) {}

FolderImages::FolderImages(const std::string& path, const std::vector<std::string>& classes)
    : path_(path) {
  try {
    for (size_t label = 0; label < classes.size(); ++label) {
      const std::vector<std::string> files = files_in(fs::path(path) / classes[label]);
      if (files.empty()) {
        fail_input("{}: has no images", (fs::path(path) / classes[label]).string());
      }
      for (const std::string& file : files) {
        files_.push_back({classes[label] + "/" + file, static_cast<int32_t>(label)});
      }
    }
  } catch (const fs::filesystem_error& error) {
    fail_with_reason(error.code().value(), error.path1().string());
  }
}

std::string FolderImages::name(int64_t index) const {
  return fs::path(path_) / files_[static_cast<size_t>(index)].path;
}

ImageView FolderImages::read(int64_t index, ImageMemory& memory) const {
  const std::string path = name(index);
  try {
    return read_image_file(path, memory);
  } catch (const InputError& error) {
    fail_input("image {} of {}: {}", index + 1, size(), error.what());
  }
}

FolderImages::Split FolderImages::hold_out() const {
  std::vector<File> train, held_out;
  for (size_t begin = 0; begin < files_.size();) {
    const auto first = files_.begin() + static_cast<int64_t>(begin);
    const auto end = std::find_if(first, files_.end(), [&](const File& file) {
      return file.label != first->label;
    });
    const int64_t count = end - first;
    if (count < 2) {
      fail_input("{}: is the only image of its class, expected at least two: the last tenth is "
                 "held out; or give the folders train and val", name(first - files_.begin()));
    }
    const auto middle = end - std::max<int64_t>(1, count / 10);
    train.insert(train.end(), first, middle);
    held_out.insert(held_out.end(), middle, end);
    begin += static_cast<size_t>(count);
  }
  return {std::shared_ptr<const FolderImages>(new FolderImages(path_, std::move(train))),
          std::shared_ptr<const FolderImages>(new FolderImages(path_, std::move(held_out)))};
}

}  // namespace tessera::data
