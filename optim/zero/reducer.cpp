#include "optim/zero/reducer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/autograd.h"
#include "core/error.h"
#include "core/ops/fill.h"
#include "core/trace.h"

namespace tessera::optim {
namespace {

// Returns a parameter's index in its bucket. The parameters of a bucket have consecutive indices in
// the partition, in descending order.
size_t position(const Partition& partition, int parameter) {
  const auto& bucket = partition.bucket(partition.layout().slot(parameter).bucket);
  return static_cast<size_t>(bucket.parameters.front() - parameter);
}

}  // namespace

Reducer::Reducer(const ZeroOptions& options, std::shared_ptr<dist::Communicator> communicator,
                 const Notes& notes)
    : options_(options), communicator_(std::move(communicator)), notes_(notes) {}

Reducer::~Reducer() {
  for (const auto& part : trainable_) detach(part->partition);
}

void Reducer::detach(const TrainablePartition& partition) {
  for (const PlacedParameter& placed : partition.partition().parameters()) {
    Leaf& leaf = placed.named.parameter.leaf();
    leaf.gradient_buffer = nullptr;
    leaf.gradient_complete = nullptr;
    leaf.gradient = {};  // a view of the optimizer's memory, which may be freed
  }
}

void Reducer::remove(const TrainablePartition& partition) {
  const auto is_it = [&partition](const auto& part) { return &part->partition == &partition; };
  const auto found = std::find_if(trainable_.begin(), trainable_.end(), is_it);
  if (found == trainable_.end()) return;
  detach(partition);  // first, because the hooks refer to the PartitionBuckets that is erased below
  const PartitionBuckets* part = found->get();
  std::erase_if(order_, [part](const Turn& turn) { return turn.part == part; });
  std::erase(parameters_, &(*found)->partition.parameters());
  trainable_.erase(found);
}

void Reducer::add(TrainablePartition& partition) {
  const auto buckets = static_cast<size_t>(partition.partition().buckets());
  // Each PartitionBuckets is allocated separately, because the hooks keep a reference to it.
  trainable_.push_back(std::make_unique<PartitionBuckets>(
      PartitionBuckets{partition, std::vector<Bucket>(buckets)}));
  parameters_.push_back(&partition.parameters());
  attach(*trainable_.back());
  add_turns(*trainable_.back());
}

void Reducer::attach(PartitionBuckets& part) {
  const auto& parameters = part.partition.partition().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    Leaf& leaf = parameters[i].named.parameter.leaf();
    const int index = static_cast<int>(i);
    leaf.gradient_buffer = [this, &part, index] { return gradient_view(part, index); };
    leaf.gradient_complete = [this, &part, index] { gradient_complete(part, index); };
  }
}

void Reducer::add_turns(PartitionBuckets& part) {
  for (int b = 0; b < part.partition.partition().buckets(); ++b) order_.push_back({&part, b});
  reset_turns(part);
  sort_turns();
}

void Reducer::reset_turns(PartitionBuckets& part) {
  // Backward is expected to reach parameters in reverse order of registration. The parameter with
  // the lowest registration index in a bucket then completes the bucket.
  for (int b = 0; b < part.partition.partition().buckets(); ++b) {
    part.bucket(b).turn = -part.partition.partition().first_registration(b);
  }
}

void Reducer::sort_turns() {
  const auto goes_first = [](const Turn& a, const Turn& b) {
    return a.part->bucket(a.bucket).turn < b.part->bucket(b.bucket).turn;
  };
  std::sort(order_.begin(), order_.end(), goes_first);
}

void Reducer::agree_on_order() {
  if (agreed_ || order_.empty()) return;
  const auto count = std::ssize(order_);
  // own[i]: index in order_ of the bucket that this rank completed i-th; -1: the rank had no data.
  const Tensor places =
      Tensor::empty({communicator_->size() * count}, DType::i32, Device{}, Category::workspace);
  auto* const own = places.data<int32_t>() + communicator_->rank() * count;
  std::fill_n(own, count, -1);
  for (size_t i = 0; i < completed_.size(); ++i) {
    const auto place = std::find(order_.begin(), order_.end(), completed_[i]);
    own[i] = static_cast<int32_t>(place - order_.begin());
  }
  communicator_->all_gather_host(places, {dist::Traffic::other}).wait();
  const auto* const first = places.data<int32_t>();  // rank 0's order, which all ranks adopt
  if (first[0] < 0) return;  // rank 0 had no data; the next micro-step tries again
  agreed_ = true;
  for (int64_t i = 0; i < count; ++i) {
    const Turn& turn = order_[static_cast<size_t>(first[i])];
    turn.part->bucket(turn.bucket).turn = i;
  }
  sort_turns();
  // No bucket is filling now, so the gradient rings can change to the new order.
  for (const auto& part : trainable_) {
    std::vector<int> buckets;
    for (const Turn& turn : order_) {
      if (turn.part == part.get()) buckets.push_back(turn.bucket);
    }
    part->partition.gradients().follow(buckets);
  }
}

void Reducer::add_frozen(StagedPartition& partition) {
  parameters_.push_back(&partition.parameters());
  frozen_.push_back(&partition);
}

void Reducer::remove_frozen(StagedPartition& partition) {
  std::erase(parameters_, &partition.parameters());
  std::erase(frozen_, &partition);
}

void Reducer::forget() {
  notes_.log.clear();
  agreed_ = false;
  for (const auto& part : trainable_) reset_turns(*part);
  sort_turns();
}

void Reducer::begin(const MicroStep& micro_step) {
  start(micro_step);
  open();
}

void Reducer::start(const MicroStep& micro_step) {
  micro_step_ = micro_step;
  reached_.clear();
  notes_.statistics.begin_micro_step();
}

void Reducer::open() {
  next_ = 0;
  completed_.clear();
  notes_.log.begin();
  for (const auto& part : trainable_) {
    for (size_t b = 0; b < part->buckets.size(); ++b) {
      Bucket& bucket = part->buckets[b];
      const auto& parameters = part->partition.partition().bucket(static_cast<int>(b)).parameters;
      bucket.gradient = {};
      bucket.written.assign(parameters.size(), false);
      bucket.missing = std::ssize(parameters);
    }
    part->partition.begin(micro_step_);
  }
  for (Table* const table : tables_) table->begin(micro_step_);
  begin_forward();
}

void Reducer::begin_forward() {
  for (ParameterPolicy* parameters : parameters_) parameters->begin_forward();
}

void Reducer::run(const std::function<Tensor()>& loss, float scale) {
  const Tensor value = loss();
  return value.defined() ? backward(value, scale) : skip();
}

void Reducer::backward(const Tensor& loss, float scale) {
  // This check comes first, so that it throws before a gradient is sent.
  notes_.statistics.check_observed();
  note_data(loss);
  propagate(loss, scale);
  note_reached();
  // Until rank 0 has had data once, every rank ends every micro-step with this collective.
  agree_on_order();
}

void Reducer::note_data(const Tensor& loss) {
  // If this rank only repeats a micro-batch, another rank records the micro-batch.
  if (!micro_step_.contributes) return;
  notes_.record.set_loss(micro_step_.index, loss);
  notes_.statistics.keep(micro_step_.index);
}

void Reducer::note_reached() {
  if (!micro_step_.contributes) return;
  for (const int64_t parameter : reached_) notes_.record.set_reached(parameter);
}

void Reducer::propagate(const Tensor& loss, float scale) {
  begin_backward();
  tessera::backward(loss, scale);
  send_rest();
  end_backward();
}

void Reducer::send_rest() {
  // All ranks must make the same collective calls in the same order. So every micro-step sends
  // every bucket, and then every table.
  complete_missing();
  for (Table* const table : tables_) table->send(options_.overlap);
}

void Reducer::begin_backward() {
  const auto begin = [this] {
    for (ParameterPolicy* parameters : parameters_) parameters->begin_backward();
    for (Table* const table : tables_) table->begin_backward();
  };
  notes_.log.note({ParameterEvent::Kind::begin_backward});
  notes_.log.add(begin);  // a rank without data repeats this call
  begin();
}

void Reducer::end_backward() {
  notes_.log.end();  // later reads of parameters belong to an evaluation
  for (ParameterPolicy* parameters : parameters_) parameters->end_backward();
  for (Table* const table : tables_) table->end_backward();
}

void Reducer::skip() {
  TESSERA_CHECK(notes_.log.empty(),
                "optimizer: skip() was called after operations had read parameters in this "
                "micro-batch, expected before");
  notes_.log.forget_running_events();
  const bool must_know = (options_.stage == 3 && !tables_.empty()) ||
                         std::any_of(parameters_.begin(), parameters_.end(),
                                     [](const auto* p) { return p->gathers_as_read(); });
  const bool knows = notes_.log.knows_last();
  TESSERA_CHECK(!must_know || communicator_->size() == 1 || knows || !notes_.log.events().empty(),
                "optimizer: a rank without data in its first micro-batch, or in the first one "
                "after add_param_group, cannot know in which order the other ranks gather "
                "parameters at stage 3");
  // A rank that has never had data follows the events of the run that it resumes.
  if (!knows) follow_events();
  if (knows) notes_.log.repeat_last();
  // If this rank had nothing to repeat or to follow above, the backward of the tables begins here.
  // Otherwise that backward has begun above, and this second call changes nothing.
  for (Table* const table : tables_) table->begin_backward();
  send_rest();
  end_backward();
  note_reached();
  completed_.clear();  // without data, this rank's order is not the order of a backward
  agree_on_order();
}

void Reducer::follow_events() {
  struct Place {
    StagedPartition* partition;
    PartitionBuckets* part;  // null for a frozen parameter
    int parameter;
  };
  std::map<int64_t, Place> places;
  const auto add_places = [&places](StagedPartition& partition, PartitionBuckets* part) {
    for (int p = 0; p < std::ssize(partition.partition().parameters()); ++p) {
      places[partition.partition().parameter(p).registration] = {&partition, part, p};
    }
  };
  for (const auto& part : trainable_) add_places(part->partition, part.get());
  for (StagedPartition* const partition : frozen_) add_places(*partition, nullptr);

  const std::vector<ParameterEvent> events = notes_.log.events();
  notes_.log.end();  // the calls below repeat these events, which must not be noted again
  for (const auto& [kind, registration] : events) {
    if (kind == ParameterEvent::Kind::begin_backward) {
      begin_backward();
      continue;
    }
    if (Table* const table = find_table(registration)) {
      if (kind != ParameterEvent::Kind::complete) table->follow(kind, notes_.log);
      continue;
    }
    const auto& [partition, part, parameter] = places.at(registration);
    const bool completes = kind == ParameterEvent::Kind::complete;
    TESSERA_CHECK(
        !completes || part != nullptr,
        "optimizer: in the run that is resumed, '{}' had a gradient, but now it is frozen",
        partition->partition().parameter(parameter).named.name);
    if (kind == ParameterEvent::Kind::use) {
      partition->parameters().use(parameter);
    } else if (kind == ParameterEvent::Kind::done) {
      partition->parameters().done(parameter);
    } else {
      const Tensor gradient = gradient_view(*part, parameter);
      kernels::fill(current_context(gradient.device()), gradient, 0.0f);
      gradient_complete(*part, parameter);
    }
  }
  reached_.clear();  // zeros do not count as a gradient
}

Tensor Reducer::gradient_view(PartitionBuckets& part, int parameter) {
  const Partition& partition = part.partition.partition();
  const dist::ParameterSlot& slot = partition.layout().slot(parameter);
  Bucket& bucket = part.bucket(slot.bucket);
  const nn::NamedParameter& named = partition.parameter(parameter).named;
  TESSERA_CHECK(bucket.missing > 0 && !bucket.written[position(partition, parameter)],
                "optimizer: a gradient of '{}' arrived outside of a micro-batch, or twice in one",
                named.name);
  if (!bucket.gradient.defined()) open_bucket(part, slot.bucket);
  return bucket.gradient.flat(slot.offset, slot.offset + slot.elements)
      .view(named.parameter.shape());
}

void Reducer::open_bucket(PartitionBuckets& part, int index) {
  Bucket& bucket = part.bucket(index);
  bucket.gradient = part.partition.gradients().open(index);
  part.partition.partition().clear_gaps(bucket.gradient, index);
}

void Reducer::gradient_complete(PartitionBuckets& part, int parameter) {
  const Partition& partition = part.partition.partition();
  const int index = partition.layout().slot(parameter).bucket;
  Bucket& bucket = part.bucket(index);
  bucket.written[position(partition, parameter)] = true;
  reached_.push_back(part.partition.first() + parameter);
  notes_.log.note({ParameterEvent::Kind::complete, partition.parameter(parameter).registration});
  if (--bucket.missing > 0) return;
  note_completed(part, index);
  // When a rank without data replays the log, this entry completes the bucket with zeros.
  notes_.log.add([this, &part, index] { complete_bucket(part, index); });
  send_complete();
}

void Reducer::note_completed(PartitionBuckets& part, int bucket) {
  if (!agreed_) completed_.push_back({&part, bucket});
}

void Reducer::complete_missing() {
  // Buckets are completed in the order of sending, so each bucket is sent immediately and frees
  // memory for the next one. In any other order a ring would have to hold many complete buckets.
  for (const auto& [part, bucket] : order_) complete_bucket(*part, bucket);
}

void Reducer::complete_bucket(PartitionBuckets& part, int index) {
  Bucket& bucket = part.bucket(index);
  const auto& parameters = part.partition.partition().bucket(index).parameters;
  if (bucket.missing > 0) note_completed(part, index);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (bucket.written[i]) continue;
    const Tensor gradient = gradient_view(part, parameters[i]);
    kernels::fill(current_context(gradient.device()), gradient, 0.0f);
    bucket.written[i] = true;
    --bucket.missing;
  }
  send_complete();
}

// Buckets are sent in order_, because every rank must start its collectives in the same order. A
// bucket that is complete early waits until all earlier buckets of order_ are complete.
void Reducer::send_complete() {
  while (next_ < order_.size()) {
    const auto [part, bucket] = order_[next_];
    if (part->bucket(bucket).missing > 0) return;
    send(*part, bucket);
    ++next_;
  }
}

void Reducer::send(PartitionBuckets& part, int index) {
  const Partition& partition = part.partition.partition();
  if (trace::enabled()) {
    const int64_t now = trace::now_ns();
    trace::record({"ready", trace::Track::buckets, now, now, partition.owner_ranges(index),
                   partition.place(index, part.partition.reduction().station(micro_step_))});
  }
  Bucket& bucket = part.bucket(index);
  // The reduction uses the gradient's memory until sent.left (returned by send() below) is done.
  const Tensor gradient = std::exchange(bucket.gradient, {});
  partition.clear_views_of_gradients(index);  // the views would keep the memory from being freed
  const ReductionPolicy::Sent sent = part.partition.reduction().send(index, gradient, micro_step_);
  part.partition.gradients().sent(index, sent.left);
  bucket.arrived = sent.arrived;
  if (!options_.overlap) bucket.arrived.wait();
}

void Reducer::wait_for_all() {
  for (const auto& part : trainable_) part->partition.gradients().wait_for_all();
  finish();
  for (ParameterPolicy* parameters : parameters_) parameters->synchronize();
}

void Reducer::finish() {
  for (const auto& part : trainable_) {
    for (Bucket& bucket : part->buckets) std::exchange(bucket.arrived, {}).wait();
  }
}

}  // namespace tessera::optim
