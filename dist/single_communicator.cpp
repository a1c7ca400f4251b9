// The communicator of a job of one rank. It sends nothing, but every call has the same meaning as
// between several ranks, and the ledger counts the calls.
#include "core/cuda.h"
#include "core/ops/copy.h"
#include "dist/collective_checks.h"
#include "dist/communicator.h"
#include "dist/fold.h"

namespace tessera::dist {

namespace {

class SingleCommunicator : public Communicator {
 public:
  explicit SingleCommunicator(Device device, std::string group = "")
      : device_(device), group_(std::move(group)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "single"; }
  std::string group() const override { return group_; }

  std::shared_ptr<Communicator> split(int color, int, const std::string& group) override {
    check_group(group);
    traffic_.add(Collective::split, Traffic::other, 0);
    if (color < 0) return nullptr;
    return std::make_shared<SingleCommunicator>(device_, group);
  }

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
    cuda::refuse_in_capture("all_gather_host");  // as between several ranks
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

  Work exchange_v(const Tensor& input, const Tensor& output, ExchangeCounts counts,
                  Call call) override {
    check_exchange_v(input, output, counts, 0, 1, device_);
    traffic_.add(Collective::exchange_v, call.purpose, 0);
    copy(output, input);
    return {};
  }

  Work all_gather_v(const Tensor& buffer, std::vector<int64_t> counts, Call call) override {
    check_all_gather_v(buffer, counts, 1, device_);
    traffic_.add(Collective::all_gather_v, call.purpose, 0);
    return {};
  }

  Work send_receive(const Transfer& outgoing, const Transfer& incoming, Call call) override {
    check_send_receive(outgoing, incoming, 0, 1, device_);
    traffic_.add(Collective::send_receive, call.purpose, 0);
    copy(incoming.buffer, outgoing.buffer);
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
  void copy(const Tensor& to, const Tensor& from) const {
    if (from.elements() > 0) kernels::copy(current_context(device_), to, from);
  }

  const Device device_;
  const std::string group_;
};

}  // namespace

std::shared_ptr<Communicator> single_communicator(Device device) {
  return std::make_shared<SingleCommunicator>(device);
}

}  // namespace tessera::dist
