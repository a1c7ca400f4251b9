// The communicator over NCCL. A call puts its work on the communication stream and returns, but
// barrier(), split() and all_gather_host() wait for the other ranks. Events order the streams:
//  - before this work, the communication stream waits for earlier launches on the caller's stream;
//  - Work::wait() makes the stream that is current at that time wait for this work.
// nccl_pieces.cpp implements the calls that consist of sends and receives. nccl_communicator.cpp
// implements all other calls, and launches all calls.
#pragma once

#include <nccl.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/cuda.h"
#include "dist/nccl/cuda/flights.h"
#include "dist/nccl/cuda/host_gather.h"
#include "dist/nccl/cuda/nccl_memory.h"
#include "dist/nccl/cuda/watchdog.h"

namespace tessera::dist {

/// The ranks that a communicator connects.
struct NcclRanks {
  ncclComm_t comm = nullptr;
  HostGather hosts;
  std::string group = {};
};

struct NcclTask {
  Call call;
  std::optional<Collective> collective;  // none for run()
  int64_t payload_bytes = 0;             // size of the buffer, for the trace
  std::function<int64_t()> body;         // returns the bytes that this rank sent
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(int device, const NcclOptions& options, NcclRanks ranks);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "nccl"; }
  std::string group() const override { return group_; }
  std::shared_ptr<Communicator> split(int color, int key, const std::string& group) override;
  Device device() const override { return device_; }
  int64_t staging_bytes() const override { return size_ * chunk_bytes_; }

  std::shared_ptr<Storage> allocate(int64_t bytes, Category category) override {
    return memory_->allocate(bytes, category);
  }

  Work exchange(const Tensor& input, int contributors, Receive receive, Call call) override;
  Work reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                      Call call) override;
  Work all_gather(const Tensor& buffer, Call call) override;
  Work all_gather_host(const Tensor& buffer, Call call) override;
  Work all_reduce(const Tensor& buffer, Call call) override;
  Work broadcast(const Tensor& buffer, int root, Call call) override;
  Work exchange_v(const Tensor& input, const Tensor& output, ExchangeCounts counts,
                  Call call) override;
  Work all_gather_v(const Tensor& buffer, std::vector<int64_t> counts, Call call) override;
  Work send_receive(const Transfer& outgoing, const Transfer& incoming, Call call) override;
  Work run(std::function<void()> body) override;
  void barrier() override;
  bool captures() const override { return true; }
  std::function<void()> capture(const std::function<void()>& body) override;

 private:
  Work submit(NcclTask task);
  std::string in_group() const;  // " in group NAME"; "" for all ranks of the job
  void meet(Collective reason);
  template <class Body>
  void call_hosts(const Body& body);
  void finish_awaited() const;
  void launch(const NcclTask& task, Flight& flight);
  template <class Launch>
  void launch_unless_failed(Flights& flights, Flight& flight, const Launch& launch_it);
  cuda::Event calls_so_far() const;
  void check_transport(const Flight& before);
  void launch_graph(const std::function<void()>& graph);
  int64_t send_pieces(const Tensor& input, int contributors, std::span<const int> sources,
                      const Receive& receive);
  void transfer(const Tensor& input, int64_t begin, int64_t elements, int contributors);
  void send_bytes(const std::byte* data, int64_t bytes, int peer) const;
  void receive_bytes(std::byte* data, int64_t bytes, int peer) const;
  void sum_in_rank_order(const Tensor& buffer);
  Tensor staged(int64_t first_byte, int64_t elements, DType dtype) const;

  const Device device_;
  const NcclOptions options_;
  const std::string group_;
  int rank_ = 0;
  int size_ = 1;
  int64_t chunk_bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  std::unique_ptr<NcclMemory> memory_;
  std::shared_ptr<Storage> staging_;  // a chunk for each rank
  const HostGather hosts_;
  std::exception_ptr failure_;  // the error of the first call that failed
  std::shared_ptr<Flights> flights_;
  std::shared_ptr<Flights> captured_;  // calls of the running capture; nullptr if there is none
  std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace tessera::dist
