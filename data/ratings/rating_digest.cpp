#include "data/ratings/rating_digest.h"

#include <span>
#include <vector>

#include "core/digest.h"

namespace tessera::data {
namespace {

// Digests the length of a list, then its elements.
template <class T>
uint64_t with(uint64_t digest, const std::vector<T>& values) {
  const uint64_t count = values.size();
  digest = xxh3(std::as_bytes(std::span(&count, 1)), digest);
  return xxh3(std::as_bytes(std::span(values)), digest);
}

}  // namespace

uint64_t digest_of_ratings(const RatingData& data) {
  uint64_t digest = digest_of_list(data.user_ids, data.has_ratings ? 1 : 0);
  digest = digest_of_list(data.item_ids, digest);
  for (const Ratings* part : {&data.train, &data.validation}) {
    digest = with(digest, part->users);
    digest = with(digest, part->items);
    digest = with(digest, part->values);
    digest = with(digest, part->times);
    // Earlier versions had no time_rests. Data without them get the same digest as in these
    // versions, so that runs can resume from checkpoints of these versions.
    if (!part->time_rests.empty()) digest = with(digest, part->time_rests);
  }
  return digest;
}

}  // namespace tessera::data
