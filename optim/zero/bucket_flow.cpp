#include "optim/zero/bucket_flow.h"

#include <algorithm>

#include "core/context.h"
#include "core/ops/fill.h"
#include "core/trace.h"
#include "dist/fold.h"

namespace tessera::optim {

namespace {

DType sum_dtype(const std::vector<PlacedParameter>& parameters, const ZeroOptions& options) {
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

}  // namespace

ParameterFlow::ParameterFlow(std::vector<PlacedParameter> parameters,
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
    leaf.about_to_be_used = [this, index] { parameters_->use(index); };
    leaf.no_longer_used = [this, index] { parameters_->done(index); };
    leaf.gradient_buffer = [name = leaf.name]() -> Tensor {
      fail("optimizer: parameter '{}' was frozen when the optimizer took it, and has no room for "
           "a gradient", name);
    };
  }
}

ParameterFlow::~ParameterFlow() {
  for (const PlacedParameter& placed : partition_.parameters()) {
    Leaf& leaf = placed.named.parameter.leaf();
    leaf.about_to_be_used = nullptr;
    leaf.no_longer_used = nullptr;
    leaf.gradient_buffer = nullptr;
  }
}

void ParameterFlow::fill(const ParameterSource& source) {
  for (int b = 0; b < partition_.buckets(); ++b) {
    partition_.fill(partition_.held_values(b), b, partition_.held_range(b), source);
  }
}

dist::Range ParameterFlow::range(int bucket) const { return partition_.held_range(bucket); }

Tensor ParameterFlow::weights(int bucket) const { return partition_.held_values(bucket); }

BucketFlow::BucketFlow(std::vector<PlacedParameter> parameters, const UpdateRule& rule,
                       std::shared_ptr<dist::Communicator> communicator,
                       const ZeroOptions& options, MicroStepLog& log)
    : ParameterFlow(std::move(parameters), std::move(communicator), options, log),
      log_(log),
      overlap_(options.overlap),
      reduction_(options.reduction),
      no_sync_(options.no_sync),
      progress_(static_cast<size_t>(partition_.buckets())) {
  make_policies(rule, options);
  attach_gradient_hooks();
}

void BucketFlow::make_policies(const UpdateRule& rule, const ZeroOptions& options) {
  const Device device = options.offload == Offload::optimizer ? Device{} : communicator_->device();
  if (options.stage < 2) {
    auto full = std::make_unique<FullGradients>(partition_, *communicator_);
    if (options.stage == 0) {
      updates_ = std::make_unique<ReplicatedUpdate>(partition_, *communicator_, rule, device,
                                                    full->flat());
    }
    gradients_ = std::move(full);
  } else {
    gradients_ = std::make_unique<RingGradients>(partition_, *communicator_);
  }
  if (!updates_) {
    updates_ = std::make_unique<ShardedUpdate>(partition_, *communicator_, rule, device);
  }
  if (reduction_ != Reduction::fast) return;
  int64_t largest = 0;
  for (const auto& bucket : partition_.layout().buckets()) {
    largest = std::max(largest, bucket.shard_elements);
  }
  scattered_ = flat_buffer(*communicator_, largest, DType::f32, Category::communication);
}

BucketFlow::~BucketFlow() {
  for (const PlacedParameter& placed : partition_.parameters()) {
    Leaf& leaf = placed.named.parameter.leaf();
    leaf.gradient_complete = nullptr;
    leaf.gradient = {};  // a view of the optimizer's memory
  }
}

void BucketFlow::attach_gradient_hooks() {
  for (size_t i = 0; i < partition_.parameters().size(); ++i) {
    Leaf& leaf = partition_.parameters()[i].named.parameter.leaf();
    const int index = static_cast<int>(i);
    leaf.gradient_buffer = [this, index] { return gradient_view(index); };
    leaf.gradient_complete = [this, index] { gradient_complete(index); };
  }
}

void BucketFlow::fill(const ParameterSource& source) {
  ParameterFlow::fill(source);
  updates_->fill(source);
}

size_t BucketFlow::position(int parameter) const {
  // Buckets hold parameters in descending order of registration.
  const auto& bucket = partition_.bucket(partition_.layout().slot(parameter).bucket);
  return static_cast<size_t>(bucket.parameters.front() - parameter);
}

void BucketFlow::begin(const MicroStep& micro_step, int64_t global_micro_batches) {
  micro_step_ = micro_step;
  global_micro_batches_ = global_micro_batches;
  for (int b = 0; b < partition_.buckets(); ++b) {
    Progress& progress = progress_[static_cast<size_t>(b)];
    const size_t parameters = partition_.bucket(b).parameters.size();
    progress.gradient = {};
    progress.written.assign(parameters, false);
    progress.missing = static_cast<int64_t>(parameters);
  }
  if (no_sync_ && micro_step.count > 1 && !local_sum_.defined()) {
    local_sum_ = flat_buffer(*communicator_, partition_.layout().flat_elements(),
                             partition_.accumulator().dtype(), Category::gradients);
  }
}

void BucketFlow::open(int bucket) {
  Progress& progress = progress_[static_cast<size_t>(bucket)];
  progress.gradient = gradients_->open(bucket);
  partition_.clear_gaps(progress.gradient, bucket);
}

Tensor BucketFlow::gradient_view(int parameter) {
  const dist::ParameterSlot& slot = partition_.layout().slot(parameter);
  Progress& progress = progress_[static_cast<size_t>(slot.bucket)];
  TESSERA_CHECK(progress.missing > 0 && !progress.written[position(parameter)],
                "optimizer: a gradient of '{}' arrived outside of a micro-batch, or twice in one",
                partition_.parameter(parameter).named.name);
  if (!progress.gradient.defined()) open(slot.bucket);
  const Shape& shape = partition_.parameter(parameter).named.parameter.shape();
  return progress.gradient.flat(slot.offset, slot.offset + slot.elements).view(shape);
}

void BucketFlow::gradient_complete(int parameter) {
  const int bucket = partition_.layout().slot(parameter).bucket;
  Progress& progress = progress_[static_cast<size_t>(bucket)];
  progress.written[position(parameter)] = true;
  on_gradient(parameter);
  if (--progress.missing > 0) return;
  log_.push_back([this, bucket] { complete_bucket(bucket); });
  on_complete();
}

void BucketFlow::complete_bucket(int bucket) {
  Progress& progress = progress_[static_cast<size_t>(bucket)];
  const auto& parameters = partition_.bucket(bucket).parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (progress.written[i]) continue;
    const Tensor gradient = gradient_view(parameters[i]);
    kernels::fill(current_context(gradient.device()), gradient, 0.0f);
    progress.written[i] = true;
    --progress.missing;
  }
  on_complete();
}

void BucketFlow::complete_missing() {
  for (int b = 0; b < partition_.buckets(); ++b) complete_bucket(b);
}

bool BucketFlow::complete(int bucket) const {
  return progress_[static_cast<size_t>(bucket)].missing == 0;
}

void BucketFlow::launch(int bucket) {
  Progress& progress = progress_[static_cast<size_t>(bucket)];
  if (trace::enabled()) {
    const int64_t now = trace::now_ns();
    trace::record({"ready", trace::Track::buckets, now, now, partition_.owner_ranges(bucket),
                   bucket});
  }
  const Tensor gradient = std::exchange(progress.gradient, {});
  if (local_sum_.defined()) {
    accumulate_locally(bucket, gradient);
    gradients_->sent(bucket, {});
    if (!micro_step_.last()) return;
    progress.reduced = reduce(bucket, partition_.bucket_of(local_sum_, bucket));
  } else {
    progress.reduced = reduce(bucket, gradient);
    gradients_->sent(bucket, progress.reduced);
  }
  if (!overlap_) progress.reduced.wait();
}

void BucketFlow::settle() {
  gradients_->settle();
  finish_reduction();
  parameters_->synchronize();
}

void BucketFlow::accumulate_locally(int bucket, const Tensor& gradient) {
  if (!micro_step_.contributes) return;
  kernels::fold(current_context(gradient.device()), partition_.bucket_of(local_sum_, bucket),
                gradient, micro_step_.index == 0);
}

dist::Work BucketFlow::reduce(int bucket, const Tensor& gradient) {
  const bool once = local_sum_.defined();
  const int64_t contributors =
      once ? std::min<int64_t>(communicator_->size(), global_micro_batches_)
           : micro_step_.contributors;
  const bool first = once || micro_step_.index == 0;
  return reduction_ == Reduction::ordered
             ? reduce_ordered(bucket, gradient, static_cast<int>(contributors), first)
             : reduce_fast(bucket, gradient, static_cast<int>(contributors), first);
}

dist::Work BucketFlow::reduce_ordered(int bucket, const Tensor& gradient, int contributors,
                                      bool first) {
  const Tensor sum = partition_.shard_of(partition_.accumulator(), bucket);
  // Up to here the sum has begun: what lies beyond has had no contribution yet in this step.
  int64_t begun = first ? 0 : sum.elements();
  auto fold = [sum, begun](int, int64_t begin, const Tensor& chunk) mutable {
    const int64_t end = begin + chunk.elements();
    TESSERA_CHECK(begin >= begun || end <= begun,
                  "optimizer: a chunk [{}, {}) came across the limit {} of those before it", begin,
                  end, begun);
    kernels::fold(current_context(sum.device()), sum.flat(begin, end), chunk, begin >= begun);
    begun = std::max(begun, end);
  };
  return communicator_->exchange(gradient, contributors, std::move(fold),
                                 {dist::Traffic::gradients, bucket});
}

dist::Work BucketFlow::reduce_fast(int bucket, const Tensor& gradient, int contributors,
                                   bool first) {
  const Tensor sum = partition_.shard_of(partition_.accumulator(), bucket);
  const dist::Call call{dist::Traffic::gradients, bucket};
  if (first && sum.dtype() == DType::f32) {
    return communicator_->reduce_scatter(sum, gradient, contributors, call);
  }
  const Tensor scattered = scattered_.flat(0, sum.elements());
  communicator_->reduce_scatter(scattered, gradient, contributors, call);
  // In the communicator's order, so after the reduce-scatter and before the next one's writes.
  return communicator_->run([sum, scattered, first] {
    kernels::fold(current_context(sum.device()), sum, scattered, first);
  });
}

void BucketFlow::finish_reduction() {
  for (Progress& progress : progress_) {
    progress.reduced.wait();
    progress.reduced = {};
  }
}

void BucketFlow::update(const UpdateChoice& choice) {
  // The bucket that the next forward uses first is the last of the layout.
  for (int b = partition_.buckets() - 1; b >= 0; --b) updates_->prepare(b);
  for (int b = partition_.buckets() - 1; b >= 0; --b) {
    {
      const trace::Scope scope("update", trace::Track::buckets, b,
                               [&] { return partition_.owner_ranges(b); });
      updates_->update(b, choice);
    }
    const dist::Work published = parameters_->publish(b);
    if (!overlap_) published.wait();
  }
}

}  // namespace tessera::optim
