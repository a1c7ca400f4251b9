// Trains a small transformer (Decoder, below) on the tokens of the file that the first argument
// names, on any number of ranks.
#include "tessera.h"

using namespace tessera;

struct Decoder : nn::Module {
  Decoder() {
    begin_block();  // stage 3 gathers a block as a whole
    add("tokens", tokens_);
    add("positions", positions_);
    begin_block();
    add("block", block_);
    add("norm", norm_);
    add("head.weight", tokens_.weight);  // tied: the head reads the table
  }
  Tensor loss(const Tensor& tokens, const Tensor& targets) {  // both i32 (B, T)
    const Tensor x = ops::embedding(tokens, tokens_.weight, positions_.weight);
    return ops::linear_cross_entropy(norm_(block_(x)), tokens_.weight, targets);
  }

  nn::Embedding tokens_{256, 64}, positions_{32, 64};
  nn::TransformerBlock block_{{.width = 64, .heads = 4}};
  nn::LayerNorm norm_{64};
};

void train_on(const std::string& path, dist::World& world) {
  const train::TrainingRun run{
      .rule = optim::AdamW{.learning_rate = 3e-3f},
      .zero = {.stage = 3, .bucket_bytes = 1 << 16, .clip = 1, .seed = 1},
      .loop = {
          .steps = 30, .batch = {.global = 8, .micro = 2}, .eval_every = 10, .timeline = true}};
  dist::check_agreement(world, {train::file_setting("data", path, false)});
  const data::TokenData data({.path = path, .context = 32, .vocab = 256, .global_batch = 8});
  train::set_up_messages(world.rank == 0);
  Decoder model;
  const train::RunFiles files{
      .log = "tokens.jsonl", .save = "tokens.safetensors", .report = "tokens.html"};
  const auto log = train::begin_run(files, world);
  optim::ZeroOptimizer optimizer(model, run.rule, world, run.zero);
  log->write(train::program_header("tokens", run, world, optimizer));
  const auto loss = [&](const Tensor& x, const Tensor& y) { return model.loss(x, y); };
  const auto forward = [&](const MicroBatch& micro) {
    const auto [tokens, targets] = data.read(micro);
    return loss(tokens, targets);
  };
  const auto evaluate = [&](int64_t done) -> train::StepWork::Evaluation {
    const float value = train::evaluate(model, loss, data.validation(),
                                        {.context = 32, .batches = 4, .sequences = 2}, world);
    return {train::eval_line(done, value), fmt::format("validation loss {:.4f}", value)};
  };
  train::StepLoop loop(
      run.loop, world, optimizer, *log,
      {.unit = "tokens", .units_per_step = 8 * 32, .forward = forward, .evaluate = evaluate});
  loop.train();
  train::report_run(train::plan_run(run, model, train::place_of(world)), loop.count(), world, *log);
  train::write_reports(files, world);
  train::save_weights("tokens.safetensors", model, optimizer, world);
}

int main(int argc, char** argv) {
  return dist::run(argc, argv, [&](dist::World& world) {
    train_on(argc > 1 ? argv[1] : "", world);
    return 0;
  });
}
