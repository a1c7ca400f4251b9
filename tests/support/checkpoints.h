// Builds checkpoints for tests: tensors with given values, cut into pieces of a given size.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "train/checkpoint/checkpoint.h"

namespace tessera::test {

/// The description of a state tensor, and its elements as a one-dimensional tensor.
struct Stated {
  optim::StateTensor of;
  Tensor values;
};

inline Stated stated(const std::string& name, const std::string& kind, const Shape& shape,
                     const std::vector<float>& values) {
  return {.of = {name, kind, DType::f32, shape},
          .values = Tensor::from({shape.elements()}, values).to_host()};
}

inline Stated stated_count(const std::string& name, int64_t count) {
  return {.of = {name, optim::updates_kind, DType::i64, {}},
          .values = Tensor::from({1}, std::vector<int64_t>{count}).to_host()};
}

/// Writes a checkpoint to folder/checkpoint_name(manifest.step) and returns this path. Tensors are
/// cut into pieces of at most `piece` elements. The pieces are written to two files in turn.
/// `piece` must be a multiple of 256, because a checkpoint is cut only between digest blocks of 256
/// elements.
inline std::string write_checkpoint(const std::string& folder, const std::vector<Stated>& tensors,
                                    train::Manifest manifest, int64_t piece = 256) {
  const std::string partial = train::partial_folder(folder, manifest.step);
  std::filesystem::create_directories(partial);
  std::vector<optim::StatePiece> pieces[2];
  size_t next = 0;
  for (const Stated& tensor : tensors) {
    manifest.tensors.push_back(tensor.of);
    const int64_t elements = tensor.of.shape.elements();
    for (int64_t begin = 0; begin < elements; begin += piece) {
      const int64_t end = std::min(elements, begin + piece);
      pieces[next++ % 2].push_back(
          {.of = tensor.of, .begin = begin, .end = end, .values = tensor.values.flat(begin, end)});
    }
  }
  std::vector<train::WrittenShard> shards;
  for (int i = 0; i < 2; ++i) {
    shards.push_back(
        train::write_shard(partial, train::shard_name(i, 2), pieces[i], manifest.tensors));
  }
  train::add_shards(manifest, std::move(shards));
  train::commit_checkpoint(folder, manifest);
  return (std::filesystem::path(folder) / train::checkpoint_name(manifest.step)).string();
}

}  // namespace tessera::test
