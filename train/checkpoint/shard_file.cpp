#include "train/checkpoint/shard_file.h"

#include <filesystem>
#include <map>
#include <ranges>
#include <sstream>

#include "core/digest.h"
#include "core/error.h"
#include "nn/safetensors.h"

namespace tessera::train {
namespace {

std::string piece_name(const optim::StatePiece& piece) {
  return fmt::format("{}/{}", piece.of.path(), piece.begin);
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

}  // namespace

std::string shard_name(int rank, int ranks) {
  return fmt::format("shard-{:05}-of-{:05}.safetensors", rank + 1, ranks);
}

bool is_shard_name(const std::string& name) { return name.starts_with("shard-"); }

WrittenShard write_shard(const std::string& folder, const std::string& name,
                         const std::vector<optim::StatePiece>& pieces,
                         const std::vector<optim::StateTensor>& tensors,
                         const std::function<void()>& views_read) {
  std::vector<nn::SafetensorsSpec> specs;
  for (const optim::StatePiece& piece : pieces) {
    specs.push_back({piece_name(piece), piece.of.dtype, {piece.end - piece.begin}});
  }
  std::map<std::string, int64_t> numbers;
  for (const optim::StateTensor& tensor : tensors) numbers.emplace(tensor.path(), numbers.size());
  const std::string path = (std::filesystem::path(folder) / name).string();
  nn::SafetensorsWriter file(path, std::move(specs));
  WrittenShard result;
  int64_t end = std::ssize(file.header());
  // Pieces that are read in place come first, because the next update waits for their reads.
  for (const bool copies : {false, true}) {
    const auto of_turn = [copies](const optim::StatePiece& piece) {
      return piece.is_copy == copies;
    };
    for (const optim::StatePiece& piece : pieces | std::views::filter(of_turn)) {
      file.write(piece_name(piece), piece.values);
    }
    // The digests are computed while the disk writes.
    for (const optim::StatePiece& piece : pieces | std::views::filter(of_turn)) {
      const int64_t offset = file.position(piece_name(piece));
      end = std::max(end, offset + piece.values.bytes());
      result.ranges.push_back(
          {.tensor = numbers.at(piece.of.path()),
           .begin = piece.begin,
           .end = piece.end,
           .file = 0,
           .offset = offset,
           .digest = digest_of_blocks(piece.of.path(), piece.begin, dtype_size(piece.of.dtype),
                                      bytes_of(piece.values))});
    }
    // From here on only copies are read.
    if (!copies && views_read) views_read();
  }
  // commit() flushes the file, because a manifest may name only bytes that are on the disk.
  file.commit();
  result.file = {.name = name,
                 .bytes = end,
                 .header_bytes = std::ssize(file.header()),
                 .header = xxh3(file.header())};
  return result;
}

std::string shard_text(const WrittenShard& shard) {
  std::string text = fmt::format("{} {} {} {}\n", shard.file.name, shard.file.bytes,
                                 shard.file.header_bytes, shard.file.header);
  for (const CheckpointRange& range : shard.ranges) {
    text += fmt::format("{} {} {} {} {} {}\n", range.tensor, range.begin, range.end, range.offset,
                        range.digest.low, range.digest.high);
  }
  return text;
}

WrittenShard parse_shard(const std::string& text) {
  std::istringstream in(text);
  WrittenShard shard;
  in >> shard.file.name >> shard.file.bytes >> shard.file.header_bytes >> shard.file.header;
  for (CheckpointRange range; in >> range.tensor >> range.begin >> range.end >> range.offset >>
                              range.digest.low >> range.digest.high;) {
    shard.ranges.push_back(range);
  }
  return shard;
}

}  // namespace tessera::train
