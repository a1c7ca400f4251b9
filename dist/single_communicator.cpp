// The communicator of a job of one rank. Nothing moves; what counts is that every call has the same
// meaning as between several ranks, and that the ledger counts which collective ran.
#include "dist/collective_checks.h"
#include "dist/communicator.h"
#include "dist/fold.h"

namespace tessera::dist {

namespace {

class SingleCommunicator : public Communicator {
 public:
  explicit SingleCommunicator(Device device) : device_(device) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "single"; }

  std::shared_ptr<Storage> allocate(int64_t bytes, Category category) override {
    return tessera::allocate(bytes, category, device_);
  }

  Work exchange(const Tensor& input, int contributors, Receive receive, Call call) override {
    check_exchange(input, contributors, 1, device_);
    traffic_.add(Collective::exchange, call.purpose, 0);
    const int64_t elements = input.elements();
    if (elements > 0) receive(0, 0, input.flat(0, elements));
    return {};
  }

  Work reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                      Call call) override {
    check_reduce_scatter(shard, input, contributors, 1, device_);
    traffic_.add(Collective::reduce_scatter, call.purpose, 0);
    if (shard.elements() > 0) kernels::fold(current_context(shard.device()), shard, input, true);
    return {};
  }

  Work all_gather(const Tensor& buffer, Call call) override {
    check_all_gather(buffer, 1, device_);
    traffic_.add(Collective::all_gather, call.purpose, 0);
    return {};
  }

  Work all_gather_host(const Tensor& buffer, Call call) override {
    check_all_gather(buffer, 1);
    traffic_.add(Collective::all_gather, call.purpose, 0);
    return {};
  }

  Work all_reduce(const Tensor& buffer, Call call) override {
    check_all_reduce(buffer, device_);
    traffic_.add(Collective::all_reduce, call.purpose, 0);
    return {};
  }

  Work broadcast(const Tensor& buffer, int root, Call call) override {
    check_broadcast(buffer, root, 1, device_);
    traffic_.add(Collective::broadcast, call.purpose, 0);
    return {};
  }

  Work run(std::function<void()> body) override {
    body();
    return {};
  }

  void barrier() override { traffic_.add(Collective::barrier, Traffic::other, 0); }

  bool captures() const override { return !device_.is_cpu(); }
  std::function<void()> capture(const std::function<void()>& body) override {
    return capture_ordered(body);
  }

  int64_t staging_bytes() const override { return 0; }
  Device device() const override { return device_; }

 private:
  Device device_;
};

}  // namespace

std::shared_ptr<Communicator> single_communicator(Device device) {
  return std::make_shared<SingleCommunicator>(device);
}

}  // namespace tessera::dist
