#include "optim/bucket_flow.h"

#include <algorithm>

#include "core/context.h"
#include "core/kernels.h"
#include "core/trace.h"

namespace tessera::optim {

BucketFlow::BucketFlow(std::unique_ptr<Partition> partition, const UpdateRule& rule,
                       std::shared_ptr<dist::Communicator> communicator,
                       const ZeroOptions& options)
    : partition_(std::move(partition)),
      communicator_(std::move(communicator)),
      overlap_(options.overlap),
      reduction_(options.reduction),
      no_sync_(options.no_sync),
      progress_(static_cast<size_t>(partition_->buckets())) {
  if (options.stage == 2) {
    gradients_ = std::make_unique<RingGradients>(*partition_, *communicator_);
    updates_ = std::make_unique<ShardedUpdate>(*partition_, *communicator_, rule);
  } else {
    auto full = std::make_unique<FullGradients>(*partition_, *communicator_);
    if (options.stage == 1) {
      updates_ = std::make_unique<ShardedUpdate>(*partition_, *communicator_, rule);
    } else {
      updates_ =
          std::make_unique<ReplicatedUpdate>(*partition_, *communicator_, rule, full->flat());
    }
    gradients_ = std::move(full);
  }
  if (reduction_ == Reduction::fast) {
    int64_t largest = 0;
    for (const auto& bucket : partition_->layout().buckets()) {
      largest = std::max(largest, bucket.shard_elements);
    }
    scattered_ = flat_buffer(*communicator_, largest, Category::communication);
  }
  attach_hooks();
}

BucketFlow::~BucketFlow() {
  for (size_t i = 0; i < partition_->parameters().size(); ++i) {
    Leaf& leaf = partition_->parameters()[i].parameter.leaf();
    const int bucket = partition_->layout().slot(static_cast<int>(i)).bucket;
    const dist::Work published = progress_[static_cast<size_t>(bucket)].published;
    // Nobody waits here, where an exception may unwind: who uses a value that is under way does.
    leaf.about_to_be_used = nullptr;
    if (!published.done()) leaf.about_to_be_used = [published] { published.wait(); };
    leaf.gradient_buffer = nullptr;
    leaf.gradient_complete = nullptr;
    leaf.gradient = {};  // a view of the optimizer's memory
  }
}

void BucketFlow::attach_hooks() {
  for (size_t i = 0; i < partition_->parameters().size(); ++i) {
    Leaf& leaf = partition_->parameters()[i].parameter.leaf();
    const int index = static_cast<int>(i);
    leaf.about_to_be_used = [this, index] { wait_published(index); };
    leaf.gradient_buffer = [this, index] { return gradient_view(index); };
    leaf.gradient_complete = [this, index] { gradient_complete(index); };
  }
}

size_t BucketFlow::position(int parameter) const {
  // Buckets hold parameters in descending order of registration.
  const auto& bucket = partition_->bucket(partition_->layout().slot(parameter).bucket);
  return static_cast<size_t>(bucket.parameters.front() - parameter);
}

void BucketFlow::begin(const MicroStep& micro_step, int64_t global_micro_batches) {
  micro_step_ = micro_step;
  global_micro_batches_ = global_micro_batches;
  for (int b = 0; b < partition_->buckets(); ++b) {
    Progress& progress = progress_[static_cast<size_t>(b)];
    const size_t parameters = partition_->bucket(b).parameters.size();
    progress.gradient = {};
    progress.written.assign(parameters, false);
    progress.missing = static_cast<int64_t>(parameters);
  }
  if (no_sync_ && micro_step.count > 1 && !local_sum_.defined()) {
    local_sum_ = flat_buffer(*communicator_, partition_->layout().flat_elements(),
                             Category::gradients);
  }
}

void BucketFlow::open(int bucket) {
  Progress& progress = progress_[static_cast<size_t>(bucket)];
  progress.gradient = gradients_->open(bucket);
  partition_->clear_gaps(progress.gradient, bucket);
}

Tensor BucketFlow::gradient_view(int parameter) {
  const dist::ParameterSlot& slot = partition_->layout().slot(parameter);
  Progress& progress = progress_[static_cast<size_t>(slot.bucket)];
  TESSERA_CHECK(progress.missing > 0 && !progress.written[position(parameter)],
                "optimizer: a gradient of '{}' arrived outside of a micro-batch, or twice in one",
                partition_->parameters()[static_cast<size_t>(parameter)].name);
  if (!progress.gradient.defined()) open(slot.bucket);
  const auto& shape = partition_->parameters()[static_cast<size_t>(parameter)].parameter.shape();
  return progress.gradient.flat(slot.offset, slot.offset + slot.elements).view(shape);
}

void BucketFlow::gradient_complete(int parameter) {
  const int bucket = partition_->layout().slot(parameter).bucket;
  Progress& progress = progress_[static_cast<size_t>(bucket)];
  progress.written[position(parameter)] = true;
  if (--progress.missing == 0 && on_complete) on_complete();
}

void BucketFlow::complete_missing() {
  for (int b = 0; b < partition_->buckets(); ++b) {
    Progress& progress = progress_[static_cast<size_t>(b)];
    const auto& parameters = partition_->bucket(b).parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (progress.written[i]) continue;
      const Tensor gradient = gradient_view(parameters[i]);
      kernels::fill(current_context(gradient.device()), gradient, 0.0f);
      gradient_complete(parameters[i]);
    }
  }
}

bool BucketFlow::complete(int bucket) const {
  return progress_[static_cast<size_t>(bucket)].missing == 0;
}

void BucketFlow::launch(int bucket) {
  Progress& progress = progress_[static_cast<size_t>(bucket)];
  if (trace::enabled()) {
    const int64_t now = trace::now_ns();
    trace::record({"ready", trace::Track::buckets, now, now, partition_->owner_ranges(bucket),
                   bucket});
  }
  const Tensor gradient = std::exchange(progress.gradient, {});
  if (local_sum_.defined()) {
    accumulate_locally(bucket, gradient);
    gradients_->sent(bucket, {});
    if (!micro_step_.last()) return;
    progress.reduced = reduce(bucket, partition_->bucket_of(local_sum_, bucket));
  } else {
    progress.reduced = reduce(bucket, gradient);
    gradients_->sent(bucket, progress.reduced);
  }
  if (!overlap_) progress.reduced.wait();
}

void BucketFlow::accumulate_locally(int bucket, const Tensor& gradient) {
  if (!micro_step_.contributes) return;
  kernels::fold(current_context(gradient.device()), partition_->bucket_of(local_sum_, bucket),
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
  const Tensor sum = partition_->shard_of(partition_->accumulator(), bucket);
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
  const Tensor sum = partition_->shard_of(partition_->accumulator(), bucket);
  const dist::Call call{dist::Traffic::gradients, bucket};
  if (first) return communicator_->reduce_scatter(sum, gradient, contributors, call);
  const Tensor scattered = scattered_.flat(0, sum.elements());
  communicator_->reduce_scatter(scattered, gradient, contributors, call);
  // In the communicator's order, so after the reduce-scatter and before the next one's writes.
  return communicator_->run(
      [sum, scattered] { kernels::fold(current_context(sum.device()), sum, scattered, false); });
}

void BucketFlow::finish_reduction(int bucket) {
  Progress& progress = progress_[static_cast<size_t>(bucket)];
  progress.reduced.wait();
  progress.reduced = {};
}

void BucketFlow::update(const std::vector<UpdateHyper>& groups) {
  // The bucket that the next forward uses first is the last of the layout.
  for (int b = partition_->buckets() - 1; b >= 0; --b) updates_->prepare(b);
  for (int b = partition_->buckets() - 1; b >= 0; --b) {
    {
      const trace::Scope scope("update", trace::Track::buckets, b,
                               [&] { return partition_->owner_ranges(b); });
      updates_->update(b, groups);
    }
    const dist::Work published = updates_->publish(b);
    if (!overlap_) published.wait();
    progress_[static_cast<size_t>(b)].published = published;
  }
}

void BucketFlow::wait_published(int parameter) {
  Progress& progress =
      progress_[static_cast<size_t>(partition_->layout().slot(parameter).bucket)];
  progress.published.wait();
  progress.published = {};
}

void BucketFlow::synchronize() {
  for (Progress& progress : progress_) {
    progress.published.wait();
    progress.published = {};
  }
}

}  // namespace tessera::optim
