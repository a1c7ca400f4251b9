#include "tests/hostile/mutation.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include <zlib.h>

#include "core/error.h"
#include "tests/hostile/text_mutation.h"
#include "tests/support/image_files.h"

namespace tessera::hostile {
namespace {

// Returns a random position in `bytes`; with probability 1/3 it is drawn from the first 64 bytes,
// where headers are.
size_t place_in(const std::string& bytes, Random& random) {
  return random.below(random.one_in(3) ? std::min<size_t>(bytes.size(), 64) : bytes.size());
}

std::string flip_bits(std::string& bytes, Random& random) {
  const size_t count = 1 + random.below(8);
  for (size_t i = 0; i < count && !bytes.empty(); ++i) {
    bytes[place_in(bytes, random)] ^= static_cast<char>(1 << random.below(8));
  }
  return fmt::format("bits: {} flipped", count);
}

std::string overwrite(std::string& bytes, Random& random) {
  const size_t begin = place_in(bytes, random);
  const size_t count = std::min(bytes.size() - begin, 1 + random.below(32));
  const int value = random.pick({0x00, 0xff, 0x7f, 0x80, -1});
  for (size_t i = begin; i < begin + count; ++i) {
    bytes[i] = static_cast<char>(value < 0 ? random.below(256) : static_cast<size_t>(value));
  }
  return fmt::format("bytes: {} from {} on become {}", count, begin, value);
}

std::string cut(std::string& bytes, Random& random) {
  const size_t old = bytes.size();
  const size_t by = random.one_in(2) ? 1 + random.below(16) : random.below(old + 1);
  bytes.resize(old - std::min(old, by));
  return fmt::format("length: {} bytes become {}", old, bytes.size());
}

std::string extend(std::string& bytes, Random& random) {
  const size_t old = bytes.size();
  const size_t count = 1 + random.below(random.one_in(2) ? 16 : 4096);
  if (random.one_in(3)) {
    bytes += bytes.substr(place_in(bytes, random), count);
  } else {
    bytes.append(count, random.pick({'\0', '\xff', ' ', '1'}));
  }
  return fmt::format("length: {} bytes become {}", old, bytes.size());
}

std::string splice(std::string& bytes, Random& random) {
  const size_t from = place_in(bytes, random);
  const size_t count = std::min(bytes.size() - from, 1 + random.below(64));
  const std::string piece = bytes.substr(from, count);
  const size_t to = place_in(bytes, random);
  switch (random.below(3)) {
    case 0:
      bytes.erase(from, count);
      return fmt::format("splice: {} bytes at {} are gone", count, from);
    case 1:
      bytes.insert(to, piece);
      return fmt::format("splice: {} bytes at {} stand at {} too", count, from, to);
    default: {
      const size_t swapped = std::min(count, bytes.size() - to);
      std::string other = bytes.substr(to, swapped);
      bytes.replace(from, swapped, other);
      bytes.replace(to, swapped, piece.substr(0, swapped));
      return fmt::format("splice: {} bytes at {} and {} are swapped", swapped, from, to);
    }
  }
}

// Overwrites 1, 2, 4 or 8 bytes with a boundary value, such as 0 or the largest 32-bit integer, in
// either byte order.
std::string boundary_number(std::string& bytes, Random& random) {
  const size_t width = random.pick<size_t>({1, 2, 4, 8});
  const uint64_t value = random.pick<uint64_t>(
      {0, 1, ~uint64_t{0}, ~uint64_t{1}, 0x7f, 0x80, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff,
       uint64_t{1} << 32, uint64_t{1} << 62, (uint64_t{1} << 63) - 1, uint64_t{1} << 63});
  if (bytes.size() < width) return "number: no place for it";
  const size_t at = std::min(place_in(bytes, random) / width * width, bytes.size() - width);
  const bool little = random.one_in(2);
  for (size_t i = 0; i < width; ++i) {
    const size_t shift = 8 * (little ? i : width - 1 - i);
    bytes[at + i] = static_cast<char>(value >> shift);
  }
  return fmt::format("number: {} in {} bytes at {}", value, width, at);
}

std::string odd_float(std::string& bytes, Random& random) {
  using limits = std::numeric_limits<float>;
  const auto value = random.pick({limits::quiet_NaN(), limits::infinity(), -limits::infinity(),
                                  limits::max(), limits::lowest(), limits::denorm_min(), -0.0f});
  if (bytes.size() < 4) return "float: no place for it";
  const size_t at = (bytes.size() - 4 - random.below(bytes.size() - 3)) / 4 * 4;
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  return fmt::format("float: {} at {}", value, at);
}

std::string mutate_bytes(std::string& bytes, bool is_text, Random& random) {
  if (is_text && !random.one_in(3)) return mutate_text(bytes, random);
  switch (random.below(7)) {
    case 0:
      return flip_bits(bytes, random);
    case 1:
      return overwrite(bytes, random);
    case 2:
      return cut(bytes, random);
    case 3:
      return extend(bytes, random);
    case 4:
      return splice(bytes, random);
    case 5:
      return boundary_number(bytes, random);
    default:
      return odd_float(bytes, random);
  }
}

std::string mutate_safetensors(std::string& bytes, Random& random) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), std::min(sizeof(length), bytes.size()));
  if (bytes.size() < 8 || length > bytes.size() - 8) return mutate_bytes(bytes, false, random);
  std::string header = bytes.substr(8, length);
  std::string data = bytes.substr(8 + length);
  const bool of_header = !random.one_in(4);
  std::string what =
      of_header ? mutate_bytes(header, true, random) : mutate_bytes(data, false, random);
  length = header.size();
  bytes.assign(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += header + data;
  return what + (of_header ? " in the header" : " in the tensors");
}

// Damages the data of a chunk, and corrects the chunk's length and checksum. Damages the whole file
// if it has no complete chunk.
std::string mutate_png(std::string& bytes, Random& random) {
  std::vector<size_t> chunks;
  for (size_t at = 8; at + 12 <= bytes.size();) {
    uint32_t length = 0;
    for (size_t i = 0; i < 4; ++i) length = length << 8 | static_cast<uint8_t>(bytes[at + i]);
    if (length > bytes.size() - at - 12) break;
    chunks.push_back(at);
    at += 12 + length;
  }
  if (chunks.empty()) return mutate_bytes(bytes, false, random);
  const size_t chosen = random.below(chunks.size());
  const size_t begin = chunks[chosen];
  const size_t end = chosen + 1 < chunks.size() ? chunks[chosen + 1] : bytes.size();
  const std::string type = bytes.substr(begin + 4, 4);
  std::string data = bytes.substr(begin + 8, end - begin - 12);
  const std::string what = mutate_bytes(data, false, random);
  bytes.replace(begin, end - begin, test::png_chunk(type, data));
  return what + " in " + type;
}

// Damages the contents of a file in a way that suits the file's form. The contents of a gzip file
// have not been compressed yet, unless mutate() compressed them for an earlier mutation.
std::string mutate_inside(HostileFile& file, Random& random) {
  switch (file.form) {
    case Form::safetensors:
      return mutate_safetensors(file.bytes, random);
    case Form::png:
      return mutate_png(file.bytes, random);
    case Form::text:
      return mutate_bytes(file.bytes, true, random);
    default:
      return mutate_bytes(file.bytes, false, random);
  }
}

std::string mutate_place(HostileFile& file, Random& random) {
  file.place = random.pick({Place::nothing, Place::folder, Place::pipe, Place::link_to_itself,
                            Place::link_to_nothing, Place::link_to_folder});
  constexpr const char* names[] = {
      "a file",           "nothing",           "a folder",          "a pipe",
      "a link to itself", "a link to nothing", "a link to a folder"};
  return fmt::format("place: {} in its place", names[static_cast<size_t>(file.place)]);
}

}  // namespace

Random::Random(uint64_t seed, std::string_view reader, int64_t number) : state_(seed) {
  for (const char c : reader) state_ = next() ^ static_cast<uint8_t>(c);
  state_ = next() ^ static_cast<uint64_t>(number);
  next();
}

uint64_t Random::next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

size_t Random::below(size_t end) { return end == 0 ? 0 : static_cast<size_t>(next() % end); }

std::string mutate(FileContents& files, Random& random) {
  std::vector<std::string> done;
  // Files of form gzip are given uncompressed, and are compressed here.
  std::vector<bool> compressed(files.size(), false);
  const size_t times = random.one_in(2) ? 1 : 2 + random.below(2);
  for (size_t i = 0; i < times; ++i) {
    const size_t chosen = random.below(files.size());
    HostileFile& file = files[chosen];
    std::string what;
    if (random.one_in(24)) {
      what = mutate_place(file, random);
    } else if (file.form == Form::gzip && !compressed[chosen] && random.one_in(2)) {
      file.bytes = test::gzipped(file.bytes);
      compressed[chosen] = true;
      what = mutate_bytes(file.bytes, false, random) + ", compressed";
    } else if (file.form != Form::plain && random.one_in(3)) {
      what = mutate_bytes(file.bytes, file.form == Form::text, random);
    } else {
      what = mutate_inside(file, random);
    }
    const size_t colon = what.find(':');
    done.push_back(what.substr(0, colon) + ": " + file.name + what.substr(colon));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].form == Form::gzip && !compressed[i])
      files[i].bytes = test::gzipped(files[i].bytes);
  }
  return fmt::format("{}", fmt::join(done, "; "));
}

void write_files(const std::string& folder, const FileContents& files) {
  namespace fs = std::filesystem;
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const HostileFile& file : files) {
    const fs::path path = fs::path(folder) / file.name;
    fs::create_directories(path.parent_path());
    switch (file.place) {
      case Place::file:
        std::ofstream(path, std::ios::binary) << file.bytes;
        break;
      case Place::nothing:
        break;
      case Place::folder:
        fs::create_directory(path);
        break;
      case Place::pipe:
        if (::mkfifo(path.c_str(), 0600) != 0) fail("{}: mkfifo failed", path.string());
        break;
      case Place::link_to_itself:
        fs::create_symlink(path.filename(), path);
        break;
      case Place::link_to_nothing:
        fs::create_symlink("nowhere", path);
        break;
      case Place::link_to_folder:
        fs::create_symlink(".", path);
        break;
    }
  }
}

}  // namespace tessera::hostile
