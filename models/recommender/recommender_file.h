// What a file of weights says about its recommender, so that `recommend` can build the model again:
// name and sizes in the metadata, the ids of users and items, and which items each user has in
// training (docs/formats.md). The weights themselves have the model's names.
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
  float lowest = 0;            // of the ratings, which predictions are clamped to
  float highest = 0;
  std::vector<std::string> user_ids = {};  // by number
  std::vector<std::string> item_ids = {};
  std::vector<int32_t> history = {};         // the users' items, ascending for each user
  std::vector<int64_t> history_begins = {};  // where each user's begin; the last is where all end
};

/// Name, sizes and objective, for the metadata.
nn::SafetensorsMetadata recommender_metadata(const RecommenderFile& file);
/// The rest, as tensors beside the weights, and their bytes (Category::workspace).
std::vector<nn::NamedTensor> recommender_tensors(const RecommenderFile& file);
int64_t recommender_tensor_bytes(const RecommenderFile& file);
/// Their names.
std::vector<std::string> recommender_tensor_names();

/// Whether metadata describe a recommender, and their description: all but ids and histories.
/// `where` begins the InputError for one that is absent or cannot be used.
bool describes_recommender(const nn::SafetensorsMetadata& metadata);
RecommenderFile parse_recommender(const std::string& where,
                                  const nn::SafetensorsMetadata& metadata);
/// Throws InputError where `path` is no file that train_recommender wrote.
RecommenderFile read_recommender_file(const std::string& path);

}  // namespace tessera::models
