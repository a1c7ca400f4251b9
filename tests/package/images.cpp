// Uses the component images of an installed Tessera: reads a batch of drawn pictures.
#include "data/images/image_batches.h"
#include "data/images/image_data.h"
#include "tessera.h"

using namespace tessera;

int main() {
  const data::ImageData images =
      data::open_image_data({.drawn_training = 20, .drawn_validation = 10});
  data::TrainingBatches batches(images.train, images.transform,
                                {.batch = {.global = 4, .micro = 2}, .steps = 2});
  const data::ImageBatch batch = batches.read({.samples = 2});
  fmt::print("{} {}\n", batch.images.shape(), images.classes());
  return batch.images.size(0) == 2 && batch.labels.size(0) == 2 ? 0 : 1;
}
