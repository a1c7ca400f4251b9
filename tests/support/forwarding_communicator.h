// A communicator that forwards every call except captures() and capture() to another communicator:
// a base for test communicators that change some of the calls.
#pragma once

#include <memory>
#include <utility>

#include "dist/communicator.h"

namespace tessera::test {

class ForwardingCommunicator : public dist::Communicator {
 public:
  explicit ForwardingCommunicator(std::shared_ptr<dist::Communicator> inner)
      : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }
  std::string group() const override { return inner_->group(); }
  /// Splits the inner communicator. The result is not a ForwardingCommunicator.
  std::shared_ptr<dist::Communicator> split(int color, int key,
                                            const std::string& group) override {
    return inner_->split(color, key, group);
  }
  Device device() const override { return inner_->device(); }
  std::shared_ptr<Storage> allocate(int64_t bytes, Category category) override {
    return inner_->allocate(bytes, category);
  }
  dist::Work exchange(const Tensor& input, int contributors, Receive receive,
                      dist::Call call) override {
    return inner_->exchange(input, contributors, std::move(receive), call);
  }
  dist::Work reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                            dist::Call call) override {
    return inner_->reduce_scatter(shard, input, contributors, call);
  }
  dist::Work all_gather(const Tensor& buffer, dist::Call call) override {
    return inner_->all_gather(buffer, call);
  }
  dist::Work all_gather_host(const Tensor& buffer, dist::Call call) override {
    return inner_->all_gather_host(buffer, call);
  }
  dist::Work all_reduce(const Tensor& buffer, dist::Call call) override {
    return inner_->all_reduce(buffer, call);
  }
  dist::Work broadcast(const Tensor& buffer, int root, dist::Call call) override {
    return inner_->broadcast(buffer, root, call);
  }
  dist::Work exchange_v(const Tensor& input, const Tensor& output, dist::ExchangeCounts counts,
                        dist::Call call) override {
    return inner_->exchange_v(input, output, std::move(counts), call);
  }
  dist::Work all_gather_v(const Tensor& buffer, std::vector<int64_t> counts,
                          dist::Call call) override {
    return inner_->all_gather_v(buffer, std::move(counts), call);
  }
  dist::Work send_receive(const dist::Transfer& outgoing, const dist::Transfer& incoming,
                          dist::Call call) override {
    return inner_->send_receive(outgoing, incoming, call);
  }
  dist::Work run(std::function<void()> body) override { return inner_->run(std::move(body)); }
  void barrier() override { inner_->barrier(); }
  int64_t staging_bytes() const override { return inner_->staging_bytes(); }
  int64_t header_bytes() const override { return inner_->header_bytes(); }
  void set_timeout(double seconds) override { inner_->set_timeout(seconds); }
  dist::TrafficLedger& traffic() override { return inner_->traffic(); }

 protected:
  dist::Communicator& inner() { return *inner_; }

 private:
  std::shared_ptr<dist::Communicator> inner_;
};

}  // namespace tessera::test
