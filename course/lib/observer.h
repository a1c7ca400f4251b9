// A communicator that records and delays every call that returns Work: the call is passed to the
// communicator `inner` only when the student waits for this call or a later one, or at finish(),
// split() or barrier(). So a missing wait gives wrong values in every run, not only in one of a
// thousand.
//
// The observer also detects races, in which the student writes to memory that a call still reads.
// The observer computes a digest of this memory twice: when the student starts the call, and when
// the call is passed to `inner`. If the digests differ, there is a race. all_gather_v and run are
// not checked.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "course/lib/events.h"
#include "dist/communicator.h"

namespace course {

class Observer : public dist::Communicator {
 public:
  /// `inner` and `events` must outlive the observer and the Work of its calls. No call may be
  /// pending when the observer is destroyed: wait for every call, or call finish(). If `late` is
  /// false, calls are passed to `inner` at once, and no race is detected. The first wait for a call
  /// adds an event "wait".
  Observer(dist::Communicator& inner, Events& events, bool late = true);
  ~Observer() override;

  /// Passes the pending calls to `inner`. Returns the names of the calls that the student has
  /// started since the previous finish() and has not waited for.
  std::vector<std::string> finish();
  /// Returns the names of the calls whose input was written after their start and before they were
  /// passed to `inner`, such as "all_gather of parameters, bucket 3".
  const std::vector<std::string>& races() const;

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string name() const override { return inner_.name(); }
  std::shared_ptr<dist::Communicator> split(int color, int key, const std::string& group) override;
  std::shared_ptr<Storage> allocate(int64_t bytes, Category category) override {
    return inner_.allocate(bytes, category);
  }
  dist::Work exchange(const Tensor& input, int contributors, Receive receive,
                      dist::Call call) override;
  dist::Work reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                            dist::Call call) override;
  dist::Work all_gather(const Tensor& buffer, dist::Call call) override;
  dist::Work all_reduce(const Tensor& buffer, dist::Call call) override;
  dist::Work broadcast(const Tensor& buffer, int root, dist::Call call) override;
  dist::Work exchange_v(const Tensor& input, const Tensor& output, dist::ExchangeCounts counts,
                        dist::Call call) override;
  dist::Work all_gather_v(const Tensor& buffer, std::vector<int64_t> counts,
                          dist::Call call) override;
  dist::Work send_receive(const dist::Transfer& outgoing, const dist::Transfer& incoming,
                          dist::Call call) override;
  dist::Work run(std::function<void()> body) override;
  void barrier() override;
  int64_t staging_bytes() const override { return inner_.staging_bytes(); }
  int64_t header_bytes() const override { return inner_.header_bytes(); }
  dist::TrafficLedger& traffic() override { return inner_.traffic(); }

  class Queue;

 private:
  dist::Work add(const std::string& name, const Tensor& watched, std::function<dist::Work()> make,
                 dist::Call call);

  dist::Communicator& inner_;
  Events& events_;
  std::shared_ptr<Queue> queue_;
};

}  // namespace course
