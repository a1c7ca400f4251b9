// Lesson 3: plain data parallelism. Every rank has the whole model and computes the gradients of
// its own micro-batches. The ranks add their gradients, and all ranks make the same update.
//
//   flat buffers   | bucket 0                          | bucket 1             | ...
//   bucket         | parameter | gap | parameter | padding |
//   its shards     | rank 0 | rank 1 | ... | rank N-1 |
//
// dist::ShardLayout computes this layout. Rank r owns shard r of every bucket: rank r adds up the
// gradients of this shard. The classes of lessons 4 to 8 are derived from DataParallel. Each class
// replaces the virtual functions in which it differs from its base class.
#pragma once

#include <string>
#include <vector>

#include "course/lib/task.h"
#include "dist/communicator.h"
#include "dist/shard_layout.h"
#include "optim/rules/update_rule.h"

namespace course {

class DataParallel {
 public:
  /// A parameter begins a new bucket if it would make the current bucket exceed `bucket_bytes`.
  /// dist/shard_layout.h lists the other cases in which a parameter begins a new bucket.
  DataParallel(nn::Module& model, const optim::AdamW& rule, dist::Communicator& communicator,
               int64_t bucket_bytes);
  virtual ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Allocates the flat buffers, places the parameters in them, and sets the hooks. Call it once,
  /// before the first step. The constructor does not call start(), because a constructor cannot
  /// call functions of a derived class.
  void start();

  /// Trains on one batch, and returns its mean loss. Collective.
  float step(int64_t step, const Batch& batch, const Loss& loss);

  const std::vector<nn::NamedParameter>& parameters() const { return parameters_; }
  const dist::ShardLayout& layout() const { return layout_; }

 protected:
  /// Selects the constructor for stage 3, where all parameters of a bucket are in one model block
  /// (dist/shard_layout.h).
  struct ByBlock {};
  DataParallel(nn::Module& model, const optim::AdamW& rule, dist::Communicator& communicator,
               int64_t bucket_bytes, ByBlock);

  // The functions that later lessons replace. start() calls the first four. The others run
  // during step().
  virtual void allocate_values();     // values_
  virtual void allocate_gradients();  // gradients_ and sums_
  virtual void allocate_state();      // the moments
  virtual void place();               // places parameters in memory and writes initial values
  /// Returns the memory for the gradient of a bucket. First waits until no call in flight reads
  /// this memory.
  virtual Tensor open(int bucket);
  /// sum = (first ? 0 : sum) + gradient, element by element.
  virtual void accumulate(const Tensor& sum, const Tensor& gradient, bool first);
  virtual void update();
  virtual void begin_backward() {}  // lesson 6
  virtual void end_backward() {}

  /// Returns a zeroed buffer of the parameters' dtype.
  Tensor buffer(int64_t elements, Category category) const;
  Tensor f32_buffer(int64_t elements, Category category) const;
  Tensor bucket_of(const Tensor& flat, int bucket) const;   // `flat`: a buffer of all buckets
  Tensor shard_of(const Tensor& shards, int bucket) const;  // `shards`: one rank's shards
  dist::Range own_range(int bucket) const { return layout_.shard(bucket, communicator_.rank()); }
  int buckets() const { return static_cast<int>(layout_.buckets().size()); }
  /// True if the bucket was opened in this micro-step and some of its gradients are still missing.
  bool filling(int bucket) const {
    const auto b = static_cast<size_t>(bucket);
    return opened_[b].defined() && missing_[b] > 0;
  }
  /// Places the parameters of a bucket in the memory `values`. If `values` is undefined, the
  /// parameters have no memory.
  void attach(int bucket, const Tensor& values);
  /// Writes the initial values of elements `range` of a bucket to `values`.
  void initialize(int bucket, const dist::Range& range, const Tensor& values) const;
  /// Updates `weights` and both moments in place. All four tensors have equally many elements.
  void apply_rule(const Tensor& weights, const Tensor& gradients, const Tensor& first_moment,
                  const Tensor& second_moment);

  std::vector<nn::NamedParameter> parameters_;
  optim::AdamW rule_;
  dist::Communicator& communicator_;
  dist::ShardLayout layout_;
  Tensor values_;     // parameters
  Tensor gradients_;  // of one micro-batch
  Tensor sums_;       // f32: this rank's shards of the step's gradient
  Tensor first_moment_;
  Tensor second_moment_;
  std::vector<dist::Work> sent_;  // [bucket]: the call that reads the bucket's gradient
  int64_t updates_ = 0;
  float loss_scale_ = 1;  // lesson 7

 private:
  friend class Inspector;  // the checks read a rank's buffers
  void set_hooks();
  void complete(int parameter);
  void send(int bucket);
  float mean_loss(const Batch& batch, const std::vector<float>& own) const;

  std::vector<Tensor> opened_;  // [bucket]: the gradient's memory in this micro-step
  std::vector<int> missing_;    // [bucket]: number of gradients that are not complete yet
  MicroBatch micro_;
  int contributors_ = 0;
};

}  // namespace course
