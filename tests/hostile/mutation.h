// Damage to files, drawn from a seed: bits, lengths, positions, numbers, text, and other things in
// a file's place. Equal seeds, readers and cases give equal damage on every machine.
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

/// SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators", 2014).
class Random {
 public:
  Random(uint64_t seed, std::string_view reader, int64_t number);

  uint64_t next();
  size_t below(size_t end);  // 0 for an end of 0
  bool one_in(size_t n) { return below(n) == 0; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }

 private:
  uint64_t state_;
};

/// The form of a file. Part of the damage keeps the lengths and checksums of this form right,
/// because otherwise a reader that looks at them first would never see the damage inside.
enum class Form { plain, text, safetensors, png, gzip };

/// What is found at a file's path.
enum class Place { file, nothing, folder, pipe, link_to_itself, link_to_nothing, link_to_folder };

struct HostileFile {
  std::string name;
  std::string bytes;
  Form form = Form::plain;
  Place place = Place::file;
};
using FileContents = std::vector<HostileFile>;

/// Damages one to three times. Returns what was done, "KIND: file: details", damages separated by
/// "; ".
std::string mutate(FileContents& files, Random& random);

/// Writes the files to a folder, which is emptied first.
void write_files(const std::string& folder, const FileContents& files);

}  // namespace tessera::hostile
