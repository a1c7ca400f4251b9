// The communicator over NCCL. A call puts its work on the communication stream and returns: events
// order it behind what the caller's stream was given before, and what waits for the call behind it.
#include <nccl.h>

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "core/cuda/check.h"
#include "core/ops/add.h"
#include "core/ops/copy.h"
#include "core/trace.h"
#include "dist/collective_checks.h"
#include "dist/fold.h"
#include "dist/nccl/cuda/flights.h"
#include "dist/nccl/cuda/host_gather.h"
#include "dist/nccl/cuda/nccl_check.h"
#include "dist/nccl/cuda/nccl_group.h"
#include "dist/nccl/cuda/nccl_memory.h"
#include "dist/nccl/cuda/nccl_setup.h"
#include "dist/nccl/cuda/watchdog.h"

namespace tessera::dist {

namespace {

struct Task {
  Call call;
  std::optional<Collective> collective;  // none for run()
  int64_t payload_bytes = 0;             // of the buffer, for the trace
  std::function<int64_t()> body;         // returns the bytes that this rank sent
};

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.raw()); }

std::string text_of(const Task& task) {
  if (!task.collective) return "run";
  return fmt::format("{} of {}", collective_name(*task.collective), task.call.text());
}

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(int device, const NcclOptions& options);
  ~NcclCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "nccl"; }
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
  Work run(std::function<void()> body) override;
  void barrier() override;
  bool captures() const override { return true; }
  std::function<void()> capture(const std::function<void()>& body) override;

 private:
  Work submit(Task task);
  void launch(const Task& task, Flight& flight);
  template <class Launch>
  void launch_unless_failed(Flights& flights, Flight& flight, const Launch& launch_it);
  cuda::Event calls_so_far() const;
  void check_transport(const Flight& before);
  void launch_graph(const std::function<void()>& graph);
  int64_t send_pieces(const Tensor& input, int contributors, std::span<const int> sources,
                      const Receive& receive);
  void transfer(const Tensor& input, int64_t begin, int64_t elements, int contributors);
  void sum_in_rank_order(const Tensor& buffer);
  Tensor staged(int64_t first_byte, int64_t elements, DType dtype) const;

  const Device device_;
  int rank_ = 0;
  int size_ = 1;
  int64_t chunk_bytes_ = 0;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  std::unique_ptr<NcclMemory> memory_;
  std::shared_ptr<Storage> staging_;  // a chunk for each rank
  HostGather hosts_;
  std::exception_ptr failure_;  // of the first call that failed
  std::shared_ptr<Flights> flights_;
  std::shared_ptr<Flights> captured_;  // of the running capture
  std::unique_ptr<Watchdog> watchdog_;
};

NcclCommunicator::NcclCommunicator(int device, const NcclOptions& options)
    : device_{DeviceType::cuda, device}, flights_(std::make_shared<Flights>(device)) {
  std::tie(rank_, size_) = mpi_rank_and_size();
  chunk_bytes_ = nccl_staging_bytes(size_, options) / size_;
  stream_ = make_stream();
  comm_ = make_communicator(rank_, size_, options);
  memory_ = std::make_unique<NcclMemory>(device, comm_);
  if (size_ > 1) staging_ = allocate(staging_bytes(), Category::communication);
  watchdog_ = std::make_unique<Watchdog>(Watched{
      .device = device,
      .timeout_s = options.timeout_s,
      .oldest = [this] { return flights_->oldest(); },
      .failure = [this] { return failure_of(comm_); },
      .abort =
          [this] {
            // On a thread of its own, which would open the first device.
            (void)cudaSetDevice(device_.index);
            (void)ncclCommAbort(comm_);
          },
  });
}

// Calls that are not done by now belong to a job that fails: nobody may wait for its peers here. So
// not ncclCommDestroy, which the ranks of a host call together.
NcclCommunicator::~NcclCommunicator() {
  watchdog_.reset();
  memory_->close();
  (void)ncclCommAbort(comm_);
  // The host waits for the rest of the stream, which uses buffers that are let go next.
  (void)cudaStreamSynchronize(stream_);
  flights_->abandon(": the communicator went away while it was under way");
  // The stream stays: memory that a body has allocated goes back in its order.
}

Work NcclCommunicator::submit(Task task) {
  const std::shared_ptr<Flights> flights = captured_ ? captured_ : flights_;
  auto flight = flights->add(text_of(task), std::move(task.body));
  launch_unless_failed(*flights, *flight, [&] { launch(task, *flight); });
  return Work(std::make_shared<FlightWork>(flights, std::move(flight)));
}

template <class Launch>
void NcclCommunicator::launch_unless_failed(Flights& flights, Flight& flight,
                                            const Launch& launch_it) {
  try {
    if (!failure_) launch_it();
  } catch (...) {
    // Nothing is launched any more, and what this call has put on the stream keeps its buffers as
    // long as the communicator lives.
    failure_ = std::current_exception();
  }
  flights.launched(flight, failure_);
}

void NcclCommunicator::check_transport(const Flight& before) {
  flights_->collect();
  const std::string failure = failure_of(comm_);
  TESSERA_CHECK(failure.empty(), "nccl: before {}: {}", before.name, failure);
}

// Calls of a capture are ordered by the same events, which nobody may ask whether they have passed:
// so they are flights that the watchdog does not see.
std::function<void()> NcclCommunicator::capture(const std::function<void()>& body) {
  captured_ = std::make_shared<Flights>(device_.index);
  const std::shared_ptr<void> end(nullptr, [this](void*) { captured_ = nullptr; });
  auto graph = capture_ordered([&] {
    body();
    captured_->wait_for_all();  // the graph ends with the compute stream
  });
  return [this, graph = std::move(graph)] { launch_graph(graph); };
}

// One flight for all of it.
void NcclCommunicator::launch_graph(const std::function<void()>& graph) {
  const auto flight = flights_->add("graph of a micro-step", {});
  launch_unless_failed(*flights_, *flight, [&] {
    check_transport(*flight);
    // The compute stream waits for the communication stream, because NCCL makes the calls of a
    // communicator one after the other. Those after the graph wait for it as for all launches.
    calls_so_far().wait();
    graph();
    flight->behind.emplace(device_.index);
  });
  if (failure_) std::rethrow_exception(failure_);
}

cuda::Event NcclCommunicator::calls_so_far() const {
  const cuda::StreamScope here(device_.index, stream_);
  return cuda::Event(device_.index);
}

void NcclCommunicator::launch(const Task& task, Flight& flight) {
  if (!captured_) check_transport(flight);
  const char* const name = task.collective ? collective_name(*task.collective).data() : "run";
  const trace::Scope scope(name, trace::Track::communication, task.call.bucket, [&] {
    return fmt::format("{}, {} bytes", traffic_name(task.call.purpose), task.payload_bytes);
  });
  const cuda::Event launched(device_.index);
  int64_t sent = 0;
  {
    const cuda::StreamScope here(device_.index, stream_);
    // The communication stream waits for what the caller has launched, because that writes the
    // buffers of this call.
    launched.wait();
    sent = flight.body();
    flight.behind.emplace(device_.index);
  }
  if (task.collective) traffic_.add(*task.collective, task.call.purpose, sent);
}

Work NcclCommunicator::exchange(const Tensor& input, int contributors, Receive receive,
                                Call call) {
  check_exchange(input, contributors, size_, device_);
  auto body = [this, input, contributors, receive = std::move(receive)] {
    std::vector<int> sources;
    for (int source = 0; source < contributors; ++source) sources.push_back(source);
    return send_pieces(input, contributors, sources, receive);
  };
  return submit({call, Collective::exchange, input.bytes(), std::move(body)});
}

// NCCL's own reduction takes all ranks, and rounds each partial sum to the dtype of the input: it
// serves f32 from everybody. Otherwise the pieces travel unsummed and are folded here, this rank's
// first, because `shard` may be the own piece of `input`, then in rank order.
Work NcclCommunicator::reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                                      Call call) {
  check_reduce_scatter(shard, input, contributors, size_, device_);
  const bool by_nccl = input.dtype() == DType::f32 && contributors == size_;
  auto by_folding = [this, shard, input, contributors] {
    std::vector<int> sources;
    if (rank_ < contributors) sources.push_back(rank_);
    for (int source = 0; source < contributors; ++source) {
      if (source != rank_) sources.push_back(source);
    }
    const int first = sources.front();
    return send_pieces(input, contributors, sources,
                       [&](int source, int64_t begin, const Tensor& chunk) {
                         kernels::fold(current_context(device_),
                                       shard.flat(begin, begin + chunk.elements()), chunk,
                                       source == first);
                       });
  };
  auto in_one_call = [this, shard, input] {
    if (shard.elements() > 0) {
      TESSERA_NCCL(ncclReduceScatter(input.raw(), shard.raw(),
                                     static_cast<size_t>(shard.elements()), ncclFloat32, ncclSum,
                                     comm_, stream_));
    }
    return (size_ - 1) * shard.bytes();
  };
  Task task{call, Collective::reduce_scatter, input.bytes(), std::move(by_folding)};
  if (by_nccl) task.body = std::move(in_one_call);
  return submit(std::move(task));
}

// Sends piece r to rank r, and hands over what arrives, chunk by chunk, in the order of `sources`.
int64_t NcclCommunicator::send_pieces(const Tensor& input, int contributors,
                                      std::span<const int> sources, const Receive& receive) {
  const int64_t piece = input.elements() / size_;
  const int64_t element_bytes = dtype_size(input.dtype());
  const int64_t chunk = size_ > 1 ? chunk_bytes_ / element_bytes : std::max<int64_t>(piece, 1);
  for (int64_t begin = 0; begin < piece; begin += chunk) {
    const int64_t elements = std::min(chunk, piece - begin);
    transfer(input, begin, elements, contributors);
    for (const int source : sources) {
      const int64_t own = rank_ * piece + begin;
      receive(source, begin,
              source == rank_ ? input.flat(own, own + elements)
                              : staged(source * chunk_bytes_, elements, input.dtype()));
    }
  }
  return rank_ < contributors ? (size_ - 1) * piece * element_bytes : 0;
}

void NcclCommunicator::transfer(const Tensor& input, int64_t begin, int64_t elements,
                                int contributors) {
  if (size_ == 1) return;
  const int64_t piece = input.elements() / size_;
  const int64_t element_bytes = dtype_size(input.dtype());
  const auto bytes = static_cast<size_t>(elements * element_bytes);
  auto* const slots = static_cast<std::byte*>(staging_->data());
  NcclGroup group;
  for (int i = 1; i < size_ && rank_ < contributors; ++i) {
    const int peer = (rank_ + i) % size_;
    const std::byte* const from = bytes_of(input) + (peer * piece + begin) * element_bytes;
    TESSERA_NCCL(ncclSend(from, bytes, ncclUint8, peer, comm_, stream_));
  }
  for (int source = 0; source < contributors; ++source) {
    if (source == rank_) continue;
    TESSERA_NCCL(
        ncclRecv(slots + source * chunk_bytes_, bytes, ncclUint8, source, comm_, stream_));
  }
  group.launch();
}

Tensor NcclCommunicator::staged(int64_t first_byte, int64_t elements, DType dtype) const {
  Tensor chunk = Tensor::unallocated({elements}, dtype);
  chunk.attach(staging_, first_byte);
  return chunk;
}

Work NcclCommunicator::all_gather(const Tensor& buffer, Call call) {
  check_all_gather(buffer, size_, device_);
  auto body = [this, buffer] {
    const int64_t piece_bytes = buffer.bytes() / size_;
    if (piece_bytes > 0) {
      TESSERA_NCCL(ncclAllGather(bytes_of(buffer) + rank_ * piece_bytes, buffer.raw(),
                                 static_cast<size_t>(piece_bytes), ncclUint8, comm_, stream_));
    }
    return (size_ - 1) * piece_bytes;
  };
  return submit({call, Collective::all_gather, buffer.bytes(), std::move(body)});
}

Work NcclCommunicator::all_gather_host(const Tensor& buffer, Call call) {
  check_all_gather(buffer, size_);
  const int64_t piece_bytes = buffer.bytes() / size_;
  if (size_ > 1) hosts_.all_gather(bytes_of(buffer), piece_bytes, call);
  traffic_.add(Collective::all_gather, call.purpose, (size_ - 1) * piece_bytes);
  return {};
}

// NCCL adds in an order of its own. Of integers every order gives the same sum; floats are gathered
// and added here.
Work NcclCommunicator::all_reduce(const Tensor& buffer, Call call) {
  check_all_reduce(buffer, device_);
  auto body = [this, buffer] {
    if (buffer.elements() > 0 && buffer.dtype() == DType::f32) {
      sum_in_rank_order(buffer);
    } else if (buffer.elements() > 0) {
      TESSERA_NCCL(ncclAllReduce(buffer.raw(), buffer.raw(),
                                 static_cast<size_t>(buffer.elements()), ncclInt64, ncclSum, comm_,
                                 stream_));
    }
    return (size_ - 1) * buffer.bytes();
  };
  return submit({call, Collective::all_reduce, buffer.bytes(), std::move(body)});
}

void NcclCommunicator::sum_in_rank_order(const Tensor& buffer) {
  if (size_ == 1) return;
  const Context context = current_context(device_);
  const int64_t chunk = chunk_bytes_ / dtype_size(DType::f32);
  for (int64_t begin = 0; begin < buffer.elements(); begin += chunk) {
    const int64_t elements = std::min(chunk, buffer.elements() - begin);
    const Tensor sum = buffer.flat(begin, begin + elements);
    TESSERA_NCCL(ncclAllGather(sum.raw(), staging_->data(), static_cast<size_t>(elements),
                               ncclFloat32, comm_, stream_));
    kernels::copy(context, sum, staged(0, elements, DType::f32));
    for (int source = 1; source < size_; ++source) {
      kernels::add(context, sum, sum, staged(source * sum.bytes(), elements, DType::f32));
    }
  }
}

Work NcclCommunicator::broadcast(const Tensor& buffer, int root, Call call) {
  check_broadcast(buffer, root, size_, device_);
  auto body = [this, buffer, root] {
    if (buffer.bytes() > 0) {
      TESSERA_NCCL(ncclBroadcast(buffer.raw(), buffer.raw(), static_cast<size_t>(buffer.bytes()),
                                 ncclUint8, root, comm_, stream_));
    }
    return rank_ == root ? (size_ - 1) * buffer.bytes() : 0;
  };
  return submit({call, Collective::broadcast, buffer.bytes(), std::move(body)});
}

Work NcclCommunicator::run(std::function<void()> body) {
  auto task = [body = std::move(body)] {
    body();
    return int64_t{0};
  };
  return submit({{}, std::nullopt, 0, std::move(task)});
}

void NcclCommunicator::barrier() {
  auto body = [this] {
    // Of whatever stands in staging: what counts is that all ranks have come.
    if (size_ > 1) {
      TESSERA_NCCL(ncclAllReduce(staging_->data(), staging_->data(), 1, ncclInt64, ncclSum, comm_,
                                 stream_));
    }
    return int64_t{0};
  };
  submit({{}, Collective::barrier, 0, std::move(body)}).wait();
  // The host waits for the last rank: that is what a barrier is for.
  TESSERA_CUDA(cudaStreamSynchronize(stream_));
}

}  // namespace

std::shared_ptr<Communicator> nccl_communicator(int device, const NcclOptions& options) {
  cuda::use_device(device);
  return std::make_shared<NcclCommunicator>(device, options);
}

}  // namespace tessera::dist
