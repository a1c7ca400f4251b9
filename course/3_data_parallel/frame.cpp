// The code that lesson 3 gives you: buffers, the layout, and the loop of a step.
#include <algorithm>

#include "core/assign.h"
#include "core/autograd.h"
#include "core/context.h"
#include "course/3_data_parallel/data_parallel.h"
#include "course/lib/events.h"
#include "optim/kernels/step_end.h"

namespace course {
namespace {

dist::ShardLayout layout_of(const std::vector<nn::NamedParameter>& parameters, int ranks,
                            int64_t bucket_bytes, bool by_block) {
  std::vector<dist::LayoutParameter> list;
  for (const auto& [name, parameter, shared, block] : parameters) {
    list.push_back({name, parameter.elements(), shared, by_block ? block : -1});
  }
  const int64_t size = dtype_size(parameters.front().parameter.dtype());
  return {std::move(list), ranks, std::max<int64_t>(1, bucket_bytes / size)};
}

}  // namespace

DataParallel::DataParallel(nn::Module& model, const optim::AdamW& rule,
                           dist::Communicator& communicator, int64_t bucket_bytes)
    : parameters_(model.named_parameters()),
      rule_(rule),
      communicator_(communicator),
      layout_(layout_of(parameters_, communicator.size(), bucket_bytes, false)) {}

DataParallel::DataParallel(nn::Module& model, const optim::AdamW& rule,
                           dist::Communicator& communicator, int64_t bucket_bytes, ByBlock)
    : parameters_(model.named_parameters()),
      rule_(rule),
      communicator_(communicator),
      layout_(layout_of(parameters_, communicator.size(), bucket_bytes, true)) {}

DataParallel::~DataParallel() {
  for (const nn::NamedParameter& named : parameters_) {
    Leaf& leaf = named.parameter.leaf();
    leaf.gradient_buffer = nullptr;
    leaf.gradient_complete = leaf.about_to_be_used = leaf.no_longer_used = nullptr;
    leaf.gradient = {};
  }
}

void DataParallel::start() {
  sent_.resize(static_cast<size_t>(buckets()));
  allocate_values();
  allocate_gradients();
  allocate_state();
  place();
  set_hooks();
}

float DataParallel::step(int64_t step, const Batch& batch, const Loss& loss) {
  std::vector<float> losses;
  for (int64_t j = 0; j < batch.micro_steps(communicator_.size()); ++j) {
    micro_ = micro_batch_of(step, batch, j, communicator_.rank(), communicator_.size());
    contributors_ = static_cast<int>(batch.contributors(communicator_.size(), j));
    opened_.assign(static_cast<size_t>(buckets()), {});
    missing_.clear();
    for (const dist::Bucket& bucket : layout_.buckets()) {
      missing_.push_back(static_cast<int>(bucket.parameters.size()));
    }
    const Tensor value = loss(micro_);
    losses.push_back(value.item());
    begin_backward();
    // The loss is scaled by 1/M, so that the sum over all M micro-batches is a mean.
    backward(value, micro_.share * loss_scale_);
    end_backward();
  }
  for (const dist::Work& work : sent_) work.wait();
  update();
  return mean_loss(batch, losses);
}

float DataParallel::mean_loss(const Batch& batch, const std::vector<float>& own) const {
  const auto count = std::ssize(own);
  const Tensor all = Tensor::zeros({communicator_.size() * count});
  std::ranges::copy(own, all.data<float>() + communicator_.rank() * count);
  communicator_.all_gather(all, {dist::Traffic::losses}).wait();
  // Uses the library's kernel, so that the mean has the same bits as ZeroOptimizer's mean.
  StepScalars scalars;
  kernels::end_step(current_context({}), &scalars, all,
                    StepEnd{.ranks = communicator_.size(),
                            .micro_steps = count,
                            .micro_batches = batch.micro_batches(),
                            .share = micro_.share});
  return scalars.loss;
}

Tensor DataParallel::buffer(int64_t elements, Category category) const {
  return Tensor::zeros({elements}, parameters_.front().parameter.dtype(), {}, category);
}

Tensor DataParallel::f32_buffer(int64_t elements, Category category) const {
  return Tensor::zeros({elements}, DType::f32, {}, category);
}

Tensor DataParallel::bucket_of(const Tensor& flat, int bucket) const {
  const dist::Bucket& b = layout_.buckets()[static_cast<size_t>(bucket)];
  return flat.flat(b.offset, b.offset + b.elements);
}

Tensor DataParallel::shard_of(const Tensor& shards, int bucket) const {
  const dist::Bucket& b = layout_.buckets()[static_cast<size_t>(bucket)];
  return shards.flat(b.shard_offset, b.shard_offset + b.shard_elements);
}

void DataParallel::attach(int bucket, const Tensor& values) {
  for (const int p : layout_.buckets()[static_cast<size_t>(bucket)].parameters) {
    const nn::NamedParameter& named = parameters_[static_cast<size_t>(p)];
    named.parameter.leaf().name = named.name;
    Tensor tensor = named.parameter.tensor();
    if (!values.defined()) {
      tensor.attach(nullptr, 0);
      continue;
    }
    const auto* const storage = static_cast<const std::byte*>(values.storage()->data());
    const auto* const first = static_cast<const std::byte*>(values.raw());
    const int64_t offset = layout_.slot(p).offset * dtype_size(values.dtype());
    tensor.attach(values.storage(), first - storage + offset);
  }
}

void DataParallel::initialize(int bucket, const dist::Range& range, const Tensor& values) const {
  for (const int p : layout_.buckets()[static_cast<size_t>(bucket)].parameters) {
    const dist::ParameterSlot& slot = layout_.slot(p);
    const int64_t begin = std::max(range.begin, slot.offset);
    const int64_t end = std::min(range.end, slot.offset + slot.elements);
    if (begin >= end) continue;
    const nn::NamedParameter& named = parameters_[static_cast<size_t>(p)];
    assign(values.flat(begin - range.begin, end - range.begin), [&](int64_t from,
                                                                    std::span<float> out) {
      nn::initialize(named.parameter.initializer(), 0, named.name, begin - slot.offset + from, out);
    });
  }
}

void DataParallel::apply_rule(const Tensor& weights, const Tensor& gradients,
                              const Tensor& first_moment, const Tensor& second_moment) {
  note("update");
  const std::vector<Tensor> state{first_moment, second_moment};
  const std::vector<UpdateSegment> all{{0, weights.elements(), 0}};
  std::vector<UpdateHyper> hyper{rule_.hyper(updates_, {})};
  hyper[0].gradient_scale = 1 / loss_scale_;
  rule_.update(current_context({}), {weights, gradients, state}, all, hyper);
}

}  // namespace course
