#include "data/ratings/rating_digest.h"

#include <span>
#include <string>
#include <vector>

#include "core/digest.h"

namespace tessera::data {
namespace {

// Digests the number of values, then the values.
template <class T>
uint64_t with(uint64_t digest, const std::vector<T>& values) {
  const uint64_t count = values.size();
  digest = xxh3(std::as_bytes(std::span(&count, 1)), digest);
  return xxh3(std::as_bytes(std::span(values)), digest);
}

// Each id is digested on its own. So the number of ids is digested too: otherwise an id could move
// from the users' list to the items' list without changing the digest.
uint64_t with_ids(uint64_t digest, const std::vector<std::string>& ids) {
  const uint64_t count = ids.size();
  digest = xxh3(std::as_bytes(std::span(&count, 1)), digest);
  for (const std::string& id : ids) digest = xxh3(id, digest);
  return digest;
}

}  // namespace

uint64_t digest_of_ids(const RatingData& data) {
  return with_ids(with_ids(0, data.user_ids), data.item_ids);
}

uint64_t digest_of_ratings(const RatingData& data) {
  uint64_t digest = with_ids(data.has_ratings ? 1 : 0, data.user_ids);
  digest = with_ids(digest, data.item_ids);
  for (const Ratings* part : {&data.train, &data.validation}) {
    digest = with(digest, part->users);
    digest = with(digest, part->items);
    digest = with(digest, part->values);
    digest = with(digest, part->times);
  }
  return digest;
}

}  // namespace tessera::data
