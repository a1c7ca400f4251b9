// Every reader of the library, with files that it reads well.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/hostile/mutation.h"

namespace tessera::hostile {

struct Reader {
  std::string name;
  std::vector<FileContents> variants;  // of each the first files are read well
  /// Reads all that is in the files of a folder, to the last value. Throws Error for what it
  /// refuses.
  std::function<void(const std::string& folder)> read;
  /// Address space that it may take beyond what the process had at its start.
  int64_t most_bytes = int64_t{256} << 20;
  /// Whether a refusal says where the fault is. Empty: it has the path of a file, or of the folder.
  std::function<bool(const std::string& text, const FileContents& files)> says_where = {};
};

std::vector<Reader> weight_readers();  // safetensors, config.json, image models, recommenders, tune
std::vector<Reader> data_readers();    // tokens and images
std::vector<Reader> rating_readers();  // files of ratings, and of titles
std::vector<Reader> option_readers();  // --config and command lines of the programs

}  // namespace tessera::hostile
