// Describes a recommender in its file of weights, so that `recommend` can build the model again
// (docs/formats.md). The metadata have the name and the sizes. Tensors have the ids of users and
// items, and the items that each user has in training. The weights themselves have the model's
// names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/recommender/recommender.h"
#include "nn/safetensors.h"

namespace tessera::models {

struct RecommenderFile {
  RecommenderConfig config = {};
  std::string objective = {};  // rating, bce or bpr
  float lowest = 0;            // the least rating; predictions are clamped to [lowest, highest]
  float highest = 0;
  std::vector<std::string> user_ids = {};  // the id of each user number
  std::vector<std::string> item_ids = {};
  std::vector<int32_t> history = {};         // the users' items, ascending for each user
  std::vector<int64_t> history_begins = {};  // offsets of each user's items; the last is the end
};

/// Returns the metadata, which have all members but ids and histories.
nn::SafetensorsMetadata recommender_metadata(const RecommenderFile& file);
/// Returns ids and histories as tensors, which are written beside the weights. Their memory is
/// counted as Category::workspace.
std::vector<nn::NamedTensor> recommender_tensors(const RecommenderFile& file);
/// Returns the bytes of the tensors of recommender_tensors.
int64_t recommender_tensor_bytes(const RecommenderFile& file);
/// Returns the names of the tensors of recommender_tensors.
std::vector<std::string> recommender_tensor_names();

/// True if the metadata describe a recommender.
bool describes_recommender(const nn::SafetensorsMetadata& metadata);
/// Returns the description in the metadata, which has all members but ids and histories. Throws
/// InputError, whose message begins with `where`, if the description is absent or cannot be used.
RecommenderFile parse_recommender(const std::string& where,
                                  const nn::SafetensorsMetadata& metadata);
/// Reads the whole description. Throws InputError if `path` is no file that train_recommender
/// wrote.
RecommenderFile read_recommender_file(const std::string& path);

}  // namespace tessera::models
