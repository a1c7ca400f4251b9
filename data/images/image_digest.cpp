#include "data/images/image_digest.h"

#include <algorithm>

#include "core/digest.h"

namespace tessera::data {
namespace {

template <class T>
uint64_t with(uint64_t digest, const T& value) {
  return xxh3(std::as_bytes(std::span(&value, 1)), digest);
}

uint64_t with_image(uint64_t digest, const ImageView& image) {
  const auto& [height, width, channels] = image.shape;
  for (const int64_t size : {height, width, channels}) digest = with(digest, size);
  const std::span pixels(image.pixels, static_cast<size_t>(image.shape.elements()));
  return xxh3(std::as_bytes(pixels), digest);
}

uint64_t with_set(uint64_t digest, const ImageSet& set, bool whole) {
  const int64_t images = set.size();
  digest = with(digest, images);
  for (int64_t i = 0; i < images; ++i) digest = with(digest, set.label(i));
  const int64_t looked_at = whole ? images : std::min<int64_t>(images, 64);
  ImageMemory memory;
  for (int64_t i = 0; i < looked_at; ++i) {
    const int64_t place = looked_at == 1 ? 0 : i * (images - 1) / (looked_at - 1);
    digest = with_image(digest, set.read(place, memory));
  }
  return digest;
}

}  // namespace

uint64_t digest_of_images(const ImageData& data, bool whole) {
  uint64_t digest = 0;
  for (const std::string& name : data.class_names) digest = xxh3(name, digest);
  digest = with_set(digest, *data.train, whole);
  return with_set(digest, *data.validation, whole);
}

}  // namespace tessera::data
