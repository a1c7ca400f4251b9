#include "dist/nccl/cuda/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "core/cuda/check.h"
#include "core/ops/add.h"
#include "core/ops/copy.h"
#include "core/trace.h"
#include "dist/collective_checks.h"
#include "dist/nccl/cuda/nccl_check.h"
#include "dist/nccl/cuda/nccl_setup.h"
#include "dist/start_guard.h"

namespace tessera::dist {

namespace {

std::byte* bytes_of(const Tensor& tensor) { return static_cast<std::byte*>(tensor.raw()); }

std::string text_of(const NcclTask& task) {
  if (!task.collective) return "run";
  return fmt::format("{} of {}", collective_name(*task.collective), task.call.text());
}

// Runs `connect`, which connects ranks by calls of MPI and NCCL. These calls wait for the other
// ranks without a time limit, so a watchdog ends the job if they take too long.
template <class Connect>
auto with_time_limit(int device, const NcclOptions& options, const Connect& connect) {
  const Watchdog watchdog(Watched{
      .device = device,
      .timeout_s = std::max(options.timeout_s, least_start_timeout_s),
      .oldest = [] { return Flights::UnderWay{0, "connecting ranks over NCCL"}; },
      .failure = [] { return std::string(); },
  });
  return connect();
}

}  // namespace

NcclCommunicator::NcclCommunicator(int device, const NcclOptions& options, NcclRanks ranks)
    : device_{DeviceType::cuda, device},
      options_(options),
      group_(std::move(ranks.group)),
      rank_(ranks.hosts.rank()),
      size_(ranks.hosts.size()),
      chunk_bytes_(nccl_staging_bytes(size_, options) / size_),
      stream_(make_stream()),
      comm_(ranks.comm),
      hosts_(ranks.hosts),
      flights_(std::make_shared<Flights>(device)) {
  memory_ = std::make_unique<NcclMemory>(device, comm_);
  if (size_ > 1) staging_ = allocate(staging_bytes(), Category::communication);
  watchdog_ = std::make_unique<Watchdog>(Watched{
      .device = device,
      .timeout_s = options.timeout_s,
      .oldest = [this] { return flights_->oldest(); },
      .failure = [this] { return failure_of(comm_); },
  });
}

// Unfinished calls that nobody has waited for belong to a job that fails, so waiting for their
// peers could hang. ncclCommDestroy could hang too, because the ranks of a host must call it
// together. ncclCommAbort does not wait for other ranks.
NcclCommunicator::~NcclCommunicator() {
  finish_awaited();
  watchdog_.reset();
  memory_->close();
  flights_->fail_unfinished(": the communicator was destroyed before the call had finished");
  (void)ncclCommAbort(comm_);
  // Wait until the stream is idle, because its remaining work uses buffers that are released next.
  (void)cudaStreamSynchronize(stream_);
  flights_->clear();
  // The stream is never destroyed. Memory that a body has allocated on this stream may be freed
  // later, and cudaFreeAsync then needs the stream.
}

// Work::wait makes only a stream wait. So the work of a call that was waited for may still be
// queued, and the destructor's abort would leave the call's buffers partly written, without an
// error. The watchdog still runs, and ends the job if a call does not finish in time. If a call has
// failed, or if an exception destroys the communicator, this function does not wait: other ranks
// may never make their calls, and the wait would delay the report of the error.
void NcclCommunicator::finish_awaited() const {
  if (failure_ || std::uncaught_exceptions() > 0) return;
  while (!flights_->awaited_done()) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

std::string NcclCommunicator::in_group() const {
  return group_.empty() ? "" : " in group " + group_;
}

Work NcclCommunicator::submit(NcclTask task) {
  // While another communicator captures a graph, an event recorded by this communicator would
  // belong to that graph. This communicator would later query the event, which CUDA does not allow.
  TESSERA_CHECK(captured_ || !cuda::captured_memory(),
                "{}{}: another communicator is capturing a graph, which can hold only that "
                "communicator's calls",
                text_of(task), in_group());
  const std::shared_ptr<Flights> flights = captured_ ? captured_ : flights_;
  auto flight = flights->add(text_of(task) + in_group(), std::move(task.body));
  launch_unless_failed(*flights, *flight, [&] { launch(task, *flight); });
  return Work(std::make_shared<FlightWork>(flights, std::move(flight)));
}

template <class Launch>
void NcclCommunicator::launch_unless_failed(Flights& flights, Flight& flight,
                                            const Launch& launch_it) {
  try {
    if (!failure_) launch_it();
  } catch (...) {
    // Once failure_ is set, later calls launch nothing. The failed call may already have launched
    // work that uses its buffers, so its flight keeps them until the communicator is destroyed.
    failure_ = std::current_exception();
  }
  flights.launched(flight, failure_);
}

void NcclCommunicator::check_transport(const Flight& before) {
  flights_->collect();
  const std::string failure = failure_of(comm_);
  TESSERA_CHECK(failure.empty(), "nccl: an error before {}: {}", before.name, failure);
}

// Events recorded in a capture must not be queried. So captured calls go into separate Flights
// (captured_), which the watchdog does not see.
std::function<void()> NcclCommunicator::capture(const std::function<void()>& body) {
  captured_ = std::make_shared<Flights>(device_.index);
  const std::shared_ptr<void> end(nullptr, [this](void*) { captured_ = nullptr; });
  auto graph = capture_ordered([&] {
    body();
    captured_->wait_for_all();  // a capture must end with all streams joined to the compute stream
  });
  return [this, graph = std::move(graph)] { launch_graph(graph); };
}

// A launch of a graph is one flight, however many calls the graph has.
void NcclCommunicator::launch_graph(const std::function<void()>& graph) {
  const auto flight = flights_->add("graph of a micro-step" + in_group(), {});
  launch_unless_failed(*flights_, *flight, [&] {
    check_transport(*flight);
    // The graph runs on the compute stream. The compute stream first waits for the communication
    // stream, because the calls of a communicator must run one after the other. Calls after the
    // graph wait for the compute stream anyway, in launch().
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

void NcclCommunicator::launch(const NcclTask& task, Flight& flight) {
  if (!captured_) check_transport(flight);
  const char* const name = task.collective ? collective_name(*task.collective).data() : "run";
  const trace::BucketPlace place = task.call.place(task.call.station());
  const trace::Scope scope(name, trace::Track::communication, place, [&] {
    return fmt::format("{}, {} bytes{}", traffic_name(task.call.purpose), task.payload_bytes,
                       group_.empty() ? "" : ", group " + group_);
  });
  const cuda::Event launched(device_.index);
  int64_t sent = 0;
  {
    const cuda::StreamScope here(device_.index, stream_);
    // The communication stream waits for the kernels that the caller has launched, because they may
    // write the buffers of this call.
    launched.wait();
    sent = flight.body();
    flight.behind.emplace(device_.index);
  }
  if (task.collective) traffic_.add(*task.collective, task.call.purpose, sent);
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
  // Launches of a graph would count the traffic of this call, but not repeat the call.
  cuda::refuse_in_capture("all_gather_host");
  check_all_gather(buffer, size_);
  if (size_ > 1) hosts_.check_piece(buffer, call);  // a wrong argument must not set failure_
  call_hosts([&] { hosts_.all_gather(buffer, call, options_.timeout_s); });
  traffic_.add(Collective::all_gather, call.purpose, (size_ - 1) * (buffer.bytes() / size_));
  return {};
}

// Runs `body`, which makes a call of hosts_. After a failure, all later calls of this communicator
// fail.
template <class Body>
void NcclCommunicator::call_hosts(const Body& body) {
  if (failure_) std::rethrow_exception(failure_);
  if (size_ == 1) return;
  try {
    body();
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

// NCCL adds in its own order. For integers every order gives the same sum. Floats are gathered, and
// added in rank order by sum_in_rank_order.
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

void NcclCommunicator::barrier() { meet(Collective::barrier); }

void NcclCommunicator::meet(Collective reason) {
  auto body = [this] {
    // The values in staging do not matter. The all-reduce only serves to wait until all ranks take
    // part.
    if (size_ > 1) {
      TESSERA_NCCL(ncclAllReduce(staging_->data(), staging_->data(), 1, ncclInt64, ncclSum, comm_,
                                 stream_));
    }
    return int64_t{0};
  };
  submit({{}, reason, 0, std::move(body)}).wait();
  // Wait on the host for the last rank, as a barrier must.
  TESSERA_CUDA(cudaStreamSynchronize(stream_));
  // When the all-reduce has ended on this rank, its data may still be on the way to a slower rank.
  // If this rank destroyed its communicator now, the abort would drop these data. So wait until the
  // all-reduce has ended on all ranks.
  call_hosts([&] {
    hosts_.barrier(std::string(collective_name(reason)) + in_group(), options_.timeout_s);
  });
}

std::shared_ptr<Communicator> NcclCommunicator::split(int color, int key,
                                                      const std::string& group) {
  check_group(group);
  // NCCL cannot split a communicator that is in use. meet() first waits until earlier calls are
  // done and all ranks have called split(). The watchdog limits the time of this wait.
  meet(Collective::split);
  cuda::use_device(device_.index);
  NcclRanks ranks = with_time_limit(device_.index, options_, [&] {
    return NcclRanks{.comm = split_communicator(comm_, color, key, options_),
                     .hosts = hosts_.split(color, key),
                     .group = group};
  });
  if (color < 0) return nullptr;
  return std::make_shared<NcclCommunicator>(device_.index, options_, std::move(ranks));
}

std::shared_ptr<Communicator> nccl_communicator(int device, const NcclOptions& options) {
  cuda::use_device(device);
  NcclRanks ranks = with_time_limit(device, options, [&] {
    const HostGather hosts;
    return NcclRanks{.comm = make_communicator(hosts.rank(), hosts.size(), options),
                     .hosts = hosts};
  });
  return std::make_shared<NcclCommunicator>(device, options, std::move(ranks));
}

}  // namespace tessera::dist
