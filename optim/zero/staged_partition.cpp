#include "optim/zero/staged_partition.h"

#include <utility>

#include "core/ops/convert.h"
#include "core/trace.h"

namespace tessera::optim {
namespace {

DType sum_dtype(const std::vector<PlacedParameter>& parameters, const ZeroOptions& options) {
  // options.grad_shard applies to 16-bit gradients only; f32 gradients have f32 sums.
  const bool wide = parameters.empty() || parameters[0].named.parameter.dtype() == DType::f32;
  return wide ? DType::f32 : options.grad_shard;
}

std::unique_ptr<ParameterPolicy> parameter_policy(const Partition& partition,
                                                  dist::Communicator& communicator,
                                                  const ZeroOptions& options, MicroStepLog& log) {
  if (options.stage == 0) return std::make_unique<ReplicatedParameters>();
  if (options.stage < 3) return std::make_unique<GatheredParameters>(partition, communicator);
  return std::make_unique<ShardedParameters>(partition, communicator, options.overlap, log);
}

std::unique_ptr<ReductionPolicy> reduction_policy(const Partition& partition,
                                                  dist::Communicator& communicator,
                                                  const ZeroOptions& options) {
  std::unique_ptr<ReductionPolicy> policy;
  if (options.reduction == Reduction::ordered) {
    policy = std::make_unique<OrderedReduction>(partition, communicator);
  } else {
    policy = std::make_unique<FastReduction>(partition, communicator);
  }
  if (!options.no_sync) return policy;
  return std::make_unique<LocalSums>(partition, communicator, std::move(policy));
}

std::unique_ptr<UpdatePlace> update_place(const Partition& partition, Device device,
                                          const ZeroOptions& options) {
  // If the ranks compute on the host (Device{}), offload changes nothing, because the optimizer
  // state is on the host anyway.
  const bool on_host = options.offload == Offload::optimizer && !(device == Device{});
  if (!on_host) return std::make_unique<UpdateOnDevice>(device);
  // Stage 0 updates whole buckets, the other stages only this rank's shards.
  const int64_t largest = partition.largest_bucket();
  return std::make_unique<UpdateOnHost>(
      device, UpdateOnHost::Crossing{
                  .buckets = partition.buckets(),
                  .largest = options.stage == 0 ? largest : largest / partition.layout().ranks(),
                  .sums = partition.sums().dtype(),
                  .values = partition.dtype()});
}

ParameterSource values_of(const StateSource& source, const std::string& kind) {
  return [&source, kind](const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
    source.read(state_path(named.name, kind), begin, out);
  };
}

// Copies the values of a bucket's range to `result`, by parameter. values[0] is the value of the
// bucket's element range.begin.
void copy_out(const Partition& partition, int bucket, const dist::Range& range,
              std::span<const float> values, const std::string& state_name, StateByName& result) {
  // Parameters without an element in `range` get an empty entry.
  for (const int p : partition.bucket(bucket).parameters) {
    result[partition.parameter(p).named.name].values[state_name];
  }
  for (const Partition::Part& part : partition.parts(bucket, range)) {
    auto& shard = result[partition.parameter(part.parameter).named.name];
    shard.range = {part.begin, part.end};
    const float* first = values.data() + part.offset;
    shard.values[state_name].assign(first, first + (part.end - part.begin));
  }
}

}  // namespace

StagedPartition::StagedPartition(std::vector<PlacedParameter> parameters,
                                 std::shared_ptr<dist::Communicator> communicator,
                                 const ZeroOptions& options, MicroStepLog& log)
    : communicator_(std::move(communicator)),
      partition_(parameters, *communicator_,
                 {.bucket_bytes = options.bucket_bytes,
                  .sharded = options.stage == 3,
                  .sum_dtype = sum_dtype(parameters, options)}),
      parameters_(parameter_policy(partition_, *communicator_, options, log)) {
  partition_.attach();
  for (size_t i = 0; i < partition_.parameters().size(); ++i) {
    Leaf& leaf = partition_.parameters()[i].named.parameter.leaf();
    const int index = static_cast<int>(i);
    const int64_t registration = partition_.parameters()[i].registration;
    // Checkpoints save the log of uses. If a run resumes at stage 3, a rank that has had no data
    // yet cannot know the order of gathers. So the rank follows the saved log
    // (Reducer::follow_events).
    leaf.about_to_be_used = [this, &log, index, registration] {
      log.note({ParameterEvent::Kind::use, registration});
      parameters_->use(index);
    };
    leaf.no_longer_used = [this, &log, index, registration] {
      log.note({ParameterEvent::Kind::done, registration});
      parameters_->done(index);
    };
    // The reducer replaces this hook for trained parameters, so only frozen parameters keep it.
    // check_not_optimised() recognises by this hook that a parameter already has an optimizer.
    leaf.gradient_buffer = [name = leaf.name]() -> Tensor {
      fail(
          "optimizer: parameter '{}' was frozen when the optimizer took it over, so it has no "
          "memory for a gradient",
          name);
    };
  }
}

// Removes the hooks, which would outlive this object. Two of them capture `this`. The third one
// would make check_not_optimised() believe that a frozen parameter still has an optimizer.
StagedPartition::~StagedPartition() {
  for (const PlacedParameter& placed : partition_.parameters()) {
    Leaf& leaf = placed.named.parameter.leaf();
    leaf.about_to_be_used = nullptr;
    leaf.no_longer_used = nullptr;
    leaf.gradient_buffer = nullptr;
  }
}

void StagedPartition::fill(const ParameterSource& source) {
  for (int b = 0; b < partition_.buckets(); ++b) {
    partition_.fill(partition_.held_values(b), b, partition_.held_range(b), source);
  }
}

dist::Range StagedPartition::range(int bucket) const { return partition_.held_range(bucket); }

Tensor StagedPartition::weights(int bucket) const { return partition_.held_values(bucket); }

StateTensor StagedPartition::state_tensor(int parameter, const std::string& kind,
                                          DType dtype) const {
  const nn::NamedParameter& named = partition_.parameter(parameter).named;
  return {named.name, kind, dtype, named.parameter.shape()};
}

void StagedPartition::list_state(std::vector<StateTensor>& list) const {
  for (int p = 0; p < std::ssize(partition_.parameters()); ++p) {
    list.push_back(state_tensor(p, value_kind, partition_.dtype()));
  }
}

void StagedPartition::list_pieces_of(const std::string& kind, int bucket, const Tensor& held,
                                     std::vector<StatePiece>& list) const {
  // Even if a rank holds the whole bucket, it saves only its shard, so that every element is saved
  // once.
  const dist::Range own = partition_.own_range(bucket);
  const int64_t offset = own.begin - range(bucket).begin;
  for (const Partition::Part& part : partition_.parts(bucket, own)) {
    const int64_t at = offset + part.offset;
    list.push_back({.of = state_tensor(part.parameter, kind, held.dtype()),
                    .begin = part.begin,
                    .end = part.end,
                    .values = held.flat(at, at + part.end - part.begin)});
  }
}

void StagedPartition::list_pieces(std::vector<StatePiece>& list) const {
  for (int b = 0; b < partition_.buckets(); ++b) list_pieces_of(value_kind, b, weights(b), list);
}

void StagedPartition::restore(const StateSource& source) { fill(values_of(source, value_kind)); }

TrainablePartition::TrainablePartition(std::vector<PlacedParameter> parameters, int64_t first,
                                       const UpdateRule& rule,
                                       std::shared_ptr<dist::Communicator> communicator,
                                       const ZeroOptions& options, MicroStepLog& log)
    : StagedPartition(std::move(parameters), std::move(communicator), options, log),
      first_(first),
      overlap_(options.overlap) {
  make_policies(rule, options);
}

void TrainablePartition::make_policies(const UpdateRule& rule, const ZeroOptions& options) {
  auto place = update_place(partition_, communicator_->device(), options);
  if (gradients_in_sums(partition_, *communicator_, options)) {
    gradients_ = std::make_unique<GradientsInSums>(
        partition_, [this, stage = options.stage] { return own_gradients(stage); });
    // There is only one rank, whose shard is the whole bucket. So the update needs no gather of the
    // sums, even at stage 0.
    updates_ = std::make_unique<ShardedUpdate>(partition_, rule, std::move(place));
  } else if (options.stage == 0) {
    auto full = std::make_unique<FullGradients>(partition_, *communicator_);
    // If sums and gradients have the same dtype, sums are gathered into the memory of the
    // gradients. This memory is free by then, because the gradients have been added to the sums.
    updates_ = std::make_unique<ReplicatedUpdate>(partition_, *communicator_, rule,
                                                  std::move(place), full->memory());
    gradients_ = std::move(full);
  } else {
    gradients_ = own_gradients(options.stage);
    updates_ = std::make_unique<ShardedUpdate>(partition_, rule, std::move(place));
  }
  reduction_ = reduction_policy(partition_, *communicator_, options);
}

std::unique_ptr<GradientPolicy> TrainablePartition::own_gradients(int stage) {
  if (stage < 2) return std::make_unique<FullGradients>(partition_, *communicator_);
  return std::make_unique<RingGradients>(partition_, *communicator_);
}

void TrainablePartition::fill(const ParameterSource& source) {
  StagedPartition::fill(source);
  // Master weights get the exact values of the source, not the parameters' 16-bit values.
  updates_->fill(source);
}

void TrainablePartition::list_state(std::vector<StateTensor>& list) const {
  for (int p = 0; p < std::ssize(partition_.parameters()); ++p) {
    list.push_back(state_tensor(p, value_kind, DType::f32));
    for (const std::string& name : updates_->state_names()) {
      list.push_back(state_tensor(p, name, DType::f32));
    }
  }
}

void TrainablePartition::list_pieces(std::vector<StatePiece>& list) const {
  StagedPartition::list_pieces(list);
  const std::vector<std::string> names = updates_->state_names();
  for (int b = 0; b < partition_.buckets(); ++b) {
    const std::vector<Tensor> state = updates_->state(b);
    for (size_t i = 0; i < names.size(); ++i) list_pieces_of(names[i], b, state[i], list);
  }
}

void TrainablePartition::restore(const StateSource& source) {
  // This calls the virtual fill(), which restores the master weights too.
  StagedPartition::restore(source);
  const std::vector<std::string> names = updates_->state_names();
  for (size_t i = 0; i < names.size(); ++i) {
    updates_->fill_state(i, values_of(source, names[i]));
  }
}

void TrainablePartition::update_and_gather(const UpdateChoice& choice) {
  // Both loops go from the last bucket to the first. The next forward uses the buckets in this
  // order, because the last bucket has the model's first parameters. All collectives of prepare()
  // start before the first update, so that updates overlap with these collectives.
  for (int b = partition_.buckets() - 1; b >= 0; --b) updates_->prepare(b);
  // At stages 1 and 2 a bucket's gather starts right after the bucket's update. With
  // options.overlap, the gather is in flight during the next update.
  for (int b = partition_.buckets() - 1; b >= 0; --b) {
    update(b, choice);
    gather(b);
  }
}

void TrainablePartition::update(int bucket, const UpdateChoice& choice) {
  const trace::Scope scope("update", trace::Track::buckets,
                           partition_.place(bucket, trace::Station::update),
                           [&] { return partition_.owner_ranges(bucket); });
  updates_->update(bucket, choice);
}

void TrainablePartition::end_step() {
  gradients_->end_step();
  partition_.sums().free();
}

void TrainablePartition::gather(int bucket) {
  const dist::Work published = parameters_->gather_updated(bucket);
  if (!overlap_) published.wait();
}

Tensor gather_bucket(const Partition& partition, int bucket, const Tensor& own,
                     const dist::Range& range, dist::Communicator& communicator,
                     dist::Traffic purpose) {
  const int64_t elements = partition.bucket(bucket).elements;
  const Tensor whole = flat_buffer(communicator, elements, DType::f32, Category::communication);
  // Converts this rank's range of the bucket to f32 and writes it to its place in `whole`. The
  // all-gather then writes the other ranks' ranges.
  const Tensor piece = whole.flat(range.begin, range.end);
  kernels::convert(current_context(whole.device()), piece, own);
  // Every rank takes the same branch, because the ranges are equally long on all ranks.
  if (range.size() < elements) {
    communicator.all_gather(whole, partition.call(purpose, bucket)).wait();
  }
  return whole;
}

void TrainablePartition::own_state(StateByName& result) const {
  const std::vector<std::string> names = updates_->state_names();
  for (int b = 0; b < partition_.buckets(); ++b) {
    const std::vector<Tensor> state = updates_->state(b);
    for (size_t i = 0; i < names.size(); ++i) {
      const Tensor own = state[i].to_host();
      copy_out(partition_, b, range(b), own.values<float>(), names[i], result);
    }
  }
}

void TrainablePartition::gather_state(int root, StateByName& result) const {
  const std::vector<std::string> names = updates_->state_names();
  for (int b = 0; b < partition_.buckets(); ++b) {
    const std::vector<Tensor> state = updates_->state(b);
    for (size_t i = 0; i < names.size(); ++i) {
      // Every rank takes part in the gather, and only the root keeps the result.
      const Tensor whole = gather_bucket(partition_, b, state[i], range(b), *communicator_);
      if (communicator_->rank() == root) {
        const Tensor values = whole.to_host();
        copy_out(partition_, b, partition_.whole_range(b), values.values<float>(), names[i],
                 result);
      }
    }
  }
}

}  // namespace tessera::optim
