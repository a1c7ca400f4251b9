// Damages files at random, to test readers: changes bits, lengths, numbers and text, and replaces
// files by other things, such as folders and pipes. The random numbers depend only on the seed, the
// reader and the number of the case, so equal files get equal damage on every machine that has the
// same zlib.
//
//   Random random(seed, "idx", 17);
//   FileContents files = variant;
//   const std::string what = mutate(files, random);    // "bytes: t10k-images-idx3-ubyte: ..."
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::hostile {

/// Random numbers by SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators",
/// 2014). `number` is the number of the case.
class Random {
 public:
  Random(uint64_t seed, std::string_view reader, int64_t number);

  uint64_t next();
  size_t below(size_t end);  // in [0, end); 0 if end is 0
  bool one_in(size_t n) { return below(n) == 0; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }

 private:
  uint64_t state_;
};

/// The format of a file. Readers may refuse wrong lengths and checksums before they read the
/// contents. So some kinds of damage change the contents, but keep the format's lengths and
/// checksums valid. Then readers do read the damaged contents.
enum class Form { plain, text, safetensors, png, gzip };

/// The kinds of entries that may be at a file's path.
enum class Place { file, nothing, folder, pipe, link_to_itself, link_to_nothing, link_to_folder };

struct HostileFile {
  std::string name;
  std::string bytes;
  Form form = Form::plain;
  Place place = Place::file;
};
using FileContents = std::vector<HostileFile>;

/// Damages the files one to three times. Returns a description of each damage, "KIND: file:
/// details", separated by "; ".
std::string mutate(FileContents& files, Random& random);

/// Writes the files to a folder, which is emptied first.
void write_files(const std::string& folder, const FileContents& files);

}  // namespace tessera::hostile
