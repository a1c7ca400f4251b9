// Lists the tested readers, with undamaged files that each of them can read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/hostile/mutation.h"

namespace tessera::hostile {

struct Reader {
  std::string name;
  std::vector<FileContents> variants;  // undamaged; a test case damages a copy of one
  /// Reads the files of a folder, up to their last values. Throws Error to refuse the files.
  std::function<void(const std::string& folder)> read;
  /// Bytes of address space by which `read` may grow the process.
  int64_t most_bytes = int64_t{256} << 20;
  /// Returns true if a refusal's text says where the fault is. Without this function, the text must
  /// contain the folder's path.
  std::function<bool(const std::string& text, const FileContents& files)> says_where = {};
};

std::vector<Reader> weight_readers();  // safetensors, models, checkpoints, tuned algorithms
std::vector<Reader> data_readers();    // tokens, images and logs
std::vector<Reader> rating_readers();  // files of ratings, and of titles
std::vector<Reader> option_readers();  // --config files, and recommend's command line

}  // namespace tessera::hostile
