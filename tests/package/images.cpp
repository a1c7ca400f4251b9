// Trains the small convolutional network of this file on generated images, on any number of ranks.
// Needs the package's component `images`.
#include "tessera.h"

using namespace tessera;

class Network : public nn::Sequential {
 public:
  explicit Network(int64_t classes) {
    emplace<nn::Conv2d>(3, 16, Size2{5, 5}, nn::Conv2d::Options{.bias = false});
    emplace<nn::BatchNorm2d>(16, nn::BatchNorm2d::Options{.relu = true});
    emplace<nn::MaxPool2d>(PoolOptions{.kernel = {4, 4}, .stride = {4, 4}});
    emplace<nn::Conv2d>(16, 32, Size2{3, 3});
    emplace<nn::Relu>();
    emplace<nn::Flatten>();
    emplace<nn::Linear>(32 * 5 * 5, classes);
  }
};

void train_network(dist::World& world) {
  const train::TrainingRun run{
      .rule = optim::AdamW{.learning_rate = 3e-3f},
      .zero = {.stage = 2, .bucket_bytes = 1 << 14, .seed = 1},
      .loop = {.steps = 100, .batch = {.global = 32, .micro = 8}, .eval_every = 20}};
  const data::ImageData images =
      data::open_image_data({.drawn_training = 640, .drawn_validation = 100});
  const data::TrainingBatches batches(
      images.train, images.transform,
      {.batch = run.loop.batch, .steps = run.loop.steps, .ranks = world.size, .rank = world.rank});
  Network model(images.classes());
  const auto log = train::begin_run({.log = "images.jsonl", .save = "images.safetensors"}, world);
  optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
  const auto forward = [&](const MicroBatch& micro) {
    const data::ImageBatch batch = batches.read(micro);
    return ops::cross_entropy(model(batch.images), batch.labels);
  };
  const auto evaluate = [&](int64_t done) -> train::StepWork::Evaluation {
    const train::ImageEvaluation result =
        train::evaluate_images(model, images.validation, images.transform, {.batch = 20}, world);
    return {train::eval_line(done, result.loss).add("top1", result.top1),
            fmt::format("top-1 {:.1f} %", 100 * result.top1)};
  };
  train::StepLoop loop(
      run.loop, world, optimizer, *log,
      {.unit = "images", .units_per_step = 32, .forward = forward, .evaluate = evaluate});
  loop.train();
  train::report_run(train::plan_run(run, model, train::place_of(world)), loop.count(), world, *log);
  train::save_weights("images.safetensors", model, optimizer, world);
}

int main(int argc, char** argv) {
  return dist::run(argc, argv, [](dist::World& world) {
    train::set_up_messages(world.rank == 0);
    train_network(world);
    return 0;
  });
}
