// The communicator over MPI: a queue of calls and one thread, the communication thread, that runs
// them in order while the caller computes.
#include <condition_variable>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>

#include "core/trace.h"
#include "dist/collective_checks.h"
#include "dist/fold.h"
#include "dist/host_work.h"
#include "dist/mpi/kept_memory.h"
#include "dist/mpi/mpi_transport.h"

namespace tessera::dist {

namespace {

struct Task {
  std::shared_ptr<HostWork> work;
  std::optional<CallHeader> header;  // none for run()
  std::function<int64_t()> body;     // returns the bytes that this rank sent
};

CallHeader header_of(Collective collective, const Tensor& buffer, Call call, int ranks = 0) {
  return {.bytes = buffer.bytes(),
          .bucket = static_cast<int32_t>(call.bucket),
          .group = static_cast<int32_t>(call.group),
          .ranks = ranks,
          .collective = collective,
          .purpose = call.purpose,
          .dtype = buffer.dtype()};
}

const std::byte* bytes_of(const Tensor& tensor) {
  return tensor.elements() > 0 ? static_cast<const std::byte*>(tensor.raw()) : nullptr;
}
std::byte* writable_bytes_of(const Tensor& tensor) {
  return tensor.elements() > 0 ? static_cast<std::byte*>(tensor.raw()) : nullptr;
}

template <class T>
void add_to(std::byte* sum, const std::byte* values, int64_t bytes) {
  auto* const to = reinterpret_cast<T*>(sum);
  const auto* const from = reinterpret_cast<const T*>(values);
  const int64_t elements = bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < elements; ++i) to[i] += from[i];
}

void copy_to(std::byte* to, const std::byte* from, int64_t bytes) {
  if (to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

std::vector<int> ascending_sources(int contributors) {
  std::vector<int> sources;
  for (int r = 0; r < contributors; ++r) sources.push_back(r);
  return sources;
}

// Returns the sources in descending order. The order begins at this rank and wraps around after
// rank 0, so that not all ranks wait for the same rank first.
std::vector<int> rotated_sources(int rank, int size, int contributors) {
  std::vector<int> sources;
  for (int i = 0; i < size; ++i) {
    const int source = (rank - i + size) % size;
    if (source < contributors) sources.push_back(source);
  }
  return sources;
}

std::vector<int64_t> in_bytes(std::vector<int64_t> counts, DType dtype) {
  for (int64_t& count : counts) count *= dtype_size(dtype);
  return counts;
}

MpiTransport::End end_of(const Transfer& transfer) {
  if (transfer.peer < 0) return {};
  return {transfer.peer, writable_bytes_of(transfer.buffer), transfer.buffer.bytes(),
          transfer.buffer.dtype()};
}

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator() : thread_([this] { serve(); }) {}
  MpiCommunicator(MPI_Comm comm, const std::string& group)
      : transport_(comm, group), thread_([this] { serve(); }) {}

  // Calls are unfinished here only if the job is failing. The destructor stops these calls, because
  // waiting for their peers could hang.
  ~MpiCommunicator() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    transport_.stop();
    changed_.notify_all();
    thread_.join();
  }

  int rank() const override { return transport_.rank(); }
  int size() const override { return transport_.size(); }
  std::string name() const override { return "mpi"; }
  std::string group() const override { return transport_.group(); }
  std::shared_ptr<Communicator> split(int color, int key, const std::string& group) override;
  int64_t staging_bytes() const override { return mpi_staging_bytes(size()); }
  int64_t header_bytes() const override { return mpi_header_bytes; }
  void set_timeout(double seconds) override { transport_.set_timeout(seconds); }

  std::shared_ptr<Storage> allocate(int64_t bytes, Category category) override {
    return tessera::allocate(bytes, category);
  }

  Work exchange(const Tensor& input, int contributors, Receive receive, Call call) override;
  Work reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                      Call call) override;
  Work all_gather(const Tensor& buffer, Call call) override;
  Work all_reduce(const Tensor& buffer, Call call) override;
  Work broadcast(const Tensor& buffer, int root, Call call) override;
  Work exchange_v(const Tensor& input, const Tensor& output, ExchangeCounts counts,
                  Call call) override;
  Work all_gather_v(const Tensor& buffer, std::vector<int64_t> counts, Call call) override;
  Work send_receive(const Transfer& outgoing, const Transfer& incoming, Call call) override;
  Work run(std::function<void()> body) override;
  void barrier() override;

 private:
  Tensor contribution(const Tensor& input, int source, int64_t begin, int64_t bytes,
                      const std::byte* data) const;
  Work submit(Task task);
  void serve();
  void execute(Task task);
  void run_body(const Task& task);

  MpiTransport transport_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> queue_;
  bool closing_ = false;
  std::exception_ptr failure_;  // of the first call that failed; used only by thread_
  std::thread thread_;          // last: the thread uses all members above
};

Work MpiCommunicator::submit(Task task) {
  const char* const name = task.header ? wait_name(task.header->collective) : "wait run";
  const Call call = task.header ? task.header->call() : Call{};
  auto work = std::make_shared<HostWork>(name, call, thread_.get_id());
  task.work = work;
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(task));
  }
  changed_.notify_one();
  return Work(std::move(work));
}

void MpiCommunicator::serve() {
  // Receive functions compute on this thread alone: an OpenMP team of this thread would take cores
  // from the caller's team.
  const ThreadCountScope one_thread(1);
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      task = std::move(queue_.front());
      queue_.pop_front();
    }
    execute(std::move(task));
  }
}

void MpiCommunicator::run_body(const Task& task) {
  const bool sends = task.header.has_value();
  const CallHeader header = task.header.value_or(CallHeader{});
  const char* const name = sends ? collective_name(header.collective).data() : "run";
  const Call call = header.call();
  const trace::Scope scope(name, trace::Track::communication, call.place(call.station()), [&] {
    return fmt::format("{}, {} bytes{}", traffic_name(header.purpose), header.bytes,
                       group().empty() ? "" : ", group " + group());
  });
  if (sends) transport_.begin(header);
  const int64_t sent = task.body();
  if (sends) {
    traffic_.add(header.collective, header.purpose, sent, transport_.header_bytes_sent());
  }
}

void MpiCommunicator::execute(Task task) {
  try {
    if (!failure_) run_body(task);
  } catch (...) {
    failure_ = std::current_exception();
    // MPI may still read and write the buffers of a collective that failed half way. The task's
    // body owns these buffers, so the body is never destroyed.
    if (task.header) {
      keep_until_exit(std::make_shared<std::function<int64_t()>>(std::move(task.body)));
      transport_.keep_memory();
    }
  }
  // Release the buffers before waking the waiting thread. That thread may rely on the release, and
  // on the call being in the trace and in the traffic ledger.
  task.body = nullptr;
  if (failure_) {
    task.work->fail(failure_);
  } else {
    task.work->finish();
  }
}

// Returns a chunk from MpiTransport::exchange as a tensor: a view of `input` for this rank's own
// piece, else a view of staging.
Tensor MpiCommunicator::contribution(const Tensor& input, int source, int64_t begin, int64_t bytes,
                                     const std::byte* data) const {
  if (source != rank()) return transport_.staged(data, bytes, input.dtype());
  const int64_t element_bytes = dtype_size(input.dtype());
  const int64_t first = rank() * (input.elements() / size()) + begin / element_bytes;
  return input.flat(first, first + bytes / element_bytes);
}

Work MpiCommunicator::exchange(const Tensor& input, int contributors, Receive receive, Call call) {
  check_exchange(input, contributors, size());
  auto body = [this, input, contributors, receive = std::move(receive)] {
    const auto arrived = [&](int source, int64_t begin, int64_t bytes, const std::byte* data) {
      receive(source, begin / dtype_size(input.dtype()),
              contribution(input, source, begin, bytes, data));
    };
    return transport_.exchange(bytes_of(input), input.bytes() / size(), contributors,
                               ascending_sources(contributors), arrived);
  };
  return submit({{}, header_of(Collective::exchange, input, call, contributors), std::move(body)});
}

Work MpiCommunicator::reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                                     Call call) {
  check_reduce_scatter(shard, input, contributors, size());
  auto body = [this, shard, input, contributors] {
    const std::vector<int> sources = rotated_sources(rank(), size(), contributors);
    const Context context = current_context(shard.device());
    const auto arrived = [&](int source, int64_t begin, int64_t bytes, const std::byte* data) {
      const Tensor chunk = contribution(input, source, begin, bytes, data);
      const int64_t first = begin / dtype_size(input.dtype());
      kernels::fold(context, shard.flat(first, first + chunk.elements()), chunk,
                    source == sources.front());
    };
    return transport_.exchange(bytes_of(input), input.bytes() / size(), contributors, sources,
                               arrived);
  };
  return submit(
      {{}, header_of(Collective::reduce_scatter, input, call, contributors), std::move(body)});
}

Work MpiCommunicator::all_gather(const Tensor& buffer, Call call) {
  check_all_gather(buffer, size());
  auto body = [this, buffer] {
    return transport_.all_gather(writable_bytes_of(buffer), buffer.bytes() / size());
  };
  return submit({{}, header_of(Collective::all_gather, buffer, call), std::move(body)});
}

Work MpiCommunicator::all_reduce(const Tensor& buffer, Call call) {
  check_all_reduce(buffer);
  auto body = [this, buffer] {
    std::byte* const sum = writable_bytes_of(buffer);
    // i64 is added as uint64_t. The bits are the same, and overflow wraps around instead of being
    // undefined.
    const auto add = buffer.dtype() == DType::f32 ? add_to<float> : add_to<uint64_t>;
    const auto arrived = [&](int source, int64_t begin, int64_t bytes, const std::byte* data) {
      if (source == 0) {
        copy_to(sum + begin, data, bytes);
      } else {
        add(sum + begin, data, bytes);
      }
    };
    return transport_.share(sum, buffer.bytes(), arrived);
  };
  return submit({{}, header_of(Collective::all_reduce, buffer, call), std::move(body)});
}

Work MpiCommunicator::broadcast(const Tensor& buffer, int root, Call call) {
  check_broadcast(buffer, root, size());
  auto body = [this, buffer, root] {
    return transport_.broadcast(writable_bytes_of(buffer), buffer.bytes(), root);
  };
  const int job_root = transport_.job_rank(root);  // errors name the root by this number
  return submit({{}, header_of(Collective::broadcast, buffer, call, job_root), std::move(body)});
}

Work MpiCommunicator::exchange_v(const Tensor& input, const Tensor& output, ExchangeCounts counts,
                                 Call call) {
  check_exchange_v(input, output, counts, rank(), size());
  auto body = [this, input, output, send = in_bytes(std::move(counts.send), input.dtype()),
               receive = in_bytes(std::move(counts.receive), input.dtype())] {
    return transport_.exchange_v(bytes_of(input), send, writable_bytes_of(output), receive);
  };
  return submit({{}, header_of(Collective::exchange_v, input, call), std::move(body)});
}

Work MpiCommunicator::all_gather_v(const Tensor& buffer, std::vector<int64_t> counts, Call call) {
  check_all_gather_v(buffer, counts, size());
  auto body = [this, buffer, bytes = in_bytes(std::move(counts), buffer.dtype())] {
    return transport_.all_gather_v(writable_bytes_of(buffer), bytes);
  };
  return submit({{}, header_of(Collective::all_gather_v, buffer, call), std::move(body)});
}

Work MpiCommunicator::send_receive(const Transfer& outgoing, const Transfer& incoming, Call call) {
  check_send_receive(outgoing, incoming, rank(), size());
  auto body = [this, outgoing, incoming] {
    if (outgoing.peer == rank()) {
      copy_to(writable_bytes_of(incoming.buffer), bytes_of(outgoing.buffer),
              outgoing.buffer.bytes());
      return int64_t{0};
    }
    return transport_.send_receive(end_of(outgoing), end_of(incoming));
  };
  const Tensor& described = outgoing.peer >= 0 ? outgoing.buffer : incoming.buffer;
  return submit({{}, header_of(Collective::send_receive, described, call), std::move(body)});
}

std::shared_ptr<Communicator> MpiCommunicator::split(int color, int key, const std::string& group) {
  check_group(group);
  check_may_wait(thread_.get_id(), "split");
  MPI_Comm comm = MPI_COMM_NULL;
  const CallHeader header{.collective = Collective::split};
  submit({{},
          header,
          [&, this] {
            comm = transport_.split(color, key);
            return int64_t{0};
          }})
      .wait();
  if (comm == MPI_COMM_NULL) return nullptr;
  auto part = std::make_shared<MpiCommunicator>(comm, group);
  part->set_timeout(transport_.timeout_s());
  return part;
}

Work MpiCommunicator::run(std::function<void()> body) {
  auto task = [body = std::move(body)] {
    body();
    return int64_t{0};
  };
  return submit({{}, std::nullopt, std::move(task)});
}

void MpiCommunicator::barrier() {
  check_may_wait(thread_.get_id(), "barrier");
  submit({{}, CallHeader{}, [this] { return transport_.barrier(); }}).wait();
}

}  // namespace

std::shared_ptr<Communicator> mpi_communicator() { return std::make_shared<MpiCommunicator>(); }

}  // namespace tessera::dist
