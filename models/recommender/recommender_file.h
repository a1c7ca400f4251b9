// Describes a recommender in its file of weights, so that `recommend` can build the model from the
// file (docs/formats.md). The metadata hold the model's name and sizes, the objective, and the mean
// and range of the ratings. Extra tensors hold the ids of users and items, and the items that each
// user has in training. The weights themselves have the names of the model's parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/recommender/recommender.h"
#include "nn/safetensors.h"

namespace tessera::models {

struct RecommenderFile {
  RecommenderConfig config = {};
  std::string objective = {};  // rating, bce or bpr
  float lowest = 0;            // the least rating; predictions are clamped to [lowest, highest]
  float highest = 0;
  std::vector<std::string> user_ids = {};  // user_ids[u] is the id of user number u
  std::vector<std::string> item_ids = {};
  std::vector<int32_t> history = {};         // item numbers, user after user, ascending per user
  /// (U + 1): user u has the items history[i] for i in [history_begins[u], history_begins[u + 1]).
  std::vector<int64_t> history_begins = {};
};

/// Returns the metadata. They hold everything in RecommenderFile except ids, histories and
/// config.distinct.
nn::SafetensorsMetadata recommender_metadata(const RecommenderFile& file);
/// Returns ids and histories as tensors, to be written into the weights' file. Their memory is
/// counted as Category::workspace.
std::vector<nn::NamedTensor> recommender_tensors(const RecommenderFile& file);
/// Returns the bytes of the tensors of recommender_tensors.
int64_t recommender_tensor_bytes(const RecommenderFile& file);
/// Returns the names of the tensors of recommender_tensors.
std::vector<std::string> recommender_tensor_names();

/// True if the metadata describe a recommender.
bool describes_recommender(const nn::SafetensorsMetadata& metadata);
/// Returns the description in the metadata, without ids and histories. Throws InputError if the
/// description is absent or cannot be used. The error's message begins with `where`.
RecommenderFile parse_recommender(const std::string& where,
                                  const nn::SafetensorsMetadata& metadata);
/// Reads the whole description. Throws InputError if train_recommender did not write the file.
RecommenderFile read_recommender_file(const std::string& path);
/// Returns a digest of the ids of users and items, as 16 hexadecimal digits. The digest depends on
/// the order of the ids, which is the order of rows in a model's embedding tables. Checkpoints
/// record the digest as the setting "ids".
std::string digest_of_ids(const std::vector<std::string>& users,
                          const std::vector<std::string>& items);
/// Returns the digest of the ids in a file of weights. Returns nullopt if the file lacks the ids of
/// users or those of items. Throws InputError if the ids cannot be used or do not fit `config`.
std::optional<std::string> read_digest_of_ids(const nn::SafetensorsReader& file,
                                              const RecommenderConfig& config);
/// Compares `config` with the recommender that a file of weights describes. Throws InputError if
/// the name, the number of factors, users or items, or neumf's hidden widths differ, or if the
/// description cannot be used. Accepts a file that describes no recommender.
void check_same_sizes(const std::string& path, const RecommenderConfig& config);
/// Returns an id for an error message: quoted, with only its control characters escaped. An id that
/// is not UTF-8 is printed as nn::printable does.
std::string printable_id(std::string_view id);
/// Throws InputError if the file of weights has ids of users or items that differ from the given
/// ids: the rows of the file would then belong to other users or items. Lists of different lengths
/// are not compared, because the shapes of the weights show such a difference.
void check_same_ids(const std::string& path, const std::vector<std::string>& users,
                    const std::vector<std::string>& items);

}  // namespace tessera::models
