// Collectives on GPU memory over a communicator of host memory: inputs are copied to the host
// before the call, and results are copied back. Several ranks may share one GPU.
//
// The copies run on the host communicator's thread, in order with its calls. So all calls can share
// two host buffers ("mirrors") and GPU memory for one chunk. Only one thread may make calls.
#include <algorithm>
#include <atomic>
#include <thread>

#include "core/context.h"
#include "core/cuda.h"
#include "dist/collective_checks.h"
#include "dist/communicator.h"

namespace tessera::dist {

namespace {

/// Pinned host memory, which grows to the largest tensor that it has held so far.
class PinnedBuffer {
 public:
  /// Returns a tensor of `elements` elements in this buffer. Before the buffer grows,
  /// `wait_for_calls` waits until no call uses the old memory. So the old memory can be freed
  /// before the larger memory is allocated.
  Tensor of(int64_t elements, DType dtype, const std::function<void()>& wait_for_calls) {
    Tensor tensor = Tensor::unallocated({elements}, dtype);
    const int64_t bytes = tensor.bytes();
    if (bytes == 0) return tensor;
    if (!storage_ || storage_->bytes() < bytes) {
      wait_for_calls();
      storage_ = nullptr;
      storage_ = allocate_pinned(std::max(bytes, staged_mirror_bytes), Category::communication);
    }
    tensor.attach(storage_, 0);
    return tensor;
  }

 private:
  std::shared_ptr<Storage> storage_;
};

/// Stores the calling thread in `thread` for as long as this object exists.
class CallingThread {
 public:
  explicit CallingThread(std::atomic<std::thread::id>& thread) : thread_(thread) {
    thread_ = std::this_thread::get_id();
  }
  ~CallingThread() { thread_ = std::thread::id(); }
  CallingThread(const CallingThread&) = delete;
  CallingThread& operator=(const CallingThread&) = delete;

 private:
  std::atomic<std::thread::id>& thread_;
};

/// Returns the size of a chunk in a host communicator's staging, which has room for two chunks for
/// each peer and for one more chunk.
int64_t one_chunk(int64_t staging_bytes, int64_t ranks) {
  return staging_bytes / (2 * (ranks - 1) + 1);
}

class StagedCommunicator : public Communicator {
 public:
  StagedCommunicator(std::shared_ptr<Communicator> host, int device)
      : host_(std::move(host)),
        device_{DeviceType::cuda, device},
        stream_(cuda::new_stream(device)),
        chunk_(Tensor::empty({one_chunk(host_->staging_bytes(), host_->size())}, DType::u8, device_,
                             Category::communication)) {
    // Every thread starts with device 0. So the host communicator's thread sets its device before
    // any call.
    host_->run([device] { cuda::use_device(device); }).wait();
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string name() const override { return host_->name(); }
  std::string group() const override { return host_->group(); }
  std::shared_ptr<Communicator> split(int color, int key, const std::string& group) override {
    auto host = host_->split(color, key, group);
    if (!host) return nullptr;
    return staged_communicator(std::move(host), device_.index);
  }
  Device device() const override { return device_; }
  int64_t staging_bytes() const override { return chunk_.bytes(); }
  int64_t header_bytes() const override { return host_->header_bytes(); }
  void set_timeout(double seconds) override { host_->set_timeout(seconds); }
  TrafficLedger& traffic() override { return host_->traffic(); }

  std::shared_ptr<Storage> allocate(int64_t bytes, Category category) override {
    return tessera::allocate(bytes, category, device_);
  }

  Work exchange(const Tensor& input, int contributors, Receive receive, Call call) override {
    check_exchange(input, contributors, size(), device_);
    const Tensor mirror = copy_to_host(input);
    host_->exchange(mirror, contributors, on_device(input, std::move(receive)), call);
    // The Work of this empty body is done when the kernels that `receive` has launched are done.
    // These kernels may read `input`, so the body holds `input` until then.
    return run([input] {});
  }

  Work reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                      Call call) override {
    check_reduce_scatter(shard, input, contributors, size(), device_);
    const Tensor mirror = copy_to_host(input);
    const Tensor sum = host_memory(second_, shard.elements(), DType::f32);
    host_->reduce_scatter(sum, mirror, contributors, call);
    return run([sum, shard] { shard.copy_from(sum); });
  }

  Work all_gather(const Tensor& buffer, Call call) override {
    check_all_gather(buffer, size(), device_);
    const Tensor mirror = copy_to_host(buffer);
    host_->all_gather(mirror, call);
    return run([buffer, mirror] { buffer.copy_from(mirror); });
  }

  Work all_gather_host(const Tensor& buffer, Call call) override {
    return host_->all_gather(buffer, call);
  }

  Work all_reduce(const Tensor& buffer, Call call) override {
    check_all_reduce(buffer, device_);
    const Tensor mirror = copy_to_host(buffer);
    host_->all_reduce(mirror, call);
    return run([buffer, mirror] { buffer.copy_from(mirror); });
  }

  Work broadcast(const Tensor& buffer, int root, Call call) override {
    check_broadcast(buffer, root, size(), device_);
    const Tensor mirror = copy_to_host(buffer);
    host_->broadcast(mirror, root, call);
    return run([buffer, mirror] { buffer.copy_from(mirror); });
  }

  Work exchange_v(const Tensor& input, const Tensor& output, ExchangeCounts counts,
                  Call call) override {
    check_exchange_v(input, output, counts, rank(), size(), device_);
    const Tensor mirror = copy_to_host(input);
    const Tensor arrived = host_memory(second_, output.elements(), output.dtype());
    host_->exchange_v(mirror, arrived, std::move(counts), call);
    return run([output, arrived] { output.copy_from(arrived); });
  }

  Work all_gather_v(const Tensor& buffer, std::vector<int64_t> counts, Call call) override {
    check_all_gather_v(buffer, counts, size(), device_);
    const Tensor mirror = copy_to_host(buffer);
    host_->all_gather_v(mirror, std::move(counts), call);
    return run([buffer, mirror] { buffer.copy_from(mirror); });
  }

  Work send_receive(const Transfer& outgoing, const Transfer& incoming, Call call) override {
    check_send_receive(outgoing, incoming, rank(), size(), device_);
    Transfer out = outgoing;
    Transfer in = incoming;
    if (out.peer >= 0) out.buffer = copy_to_host(outgoing.buffer);
    if (in.peer >= 0) {
      in.buffer = host_memory(second_, incoming.buffer.elements(), incoming.buffer.dtype());
    }
    Work sent = host_->send_receive(out, in, call);
    if (in.peer < 0) return sent;
    return run([to = incoming.buffer, from = in.buffer] { to.copy_from(from); });
  }

  Work run(std::function<void()> body) override {
    // The body's stream waits for the kernels that the caller has launched so far, because `body`
    // may use the same memory as these kernels.
    auto here = [this, launched = cuda::Event(device_.index), body = std::move(body)] {
      const cuda::StreamScope scope(device_.index, stream_);
      launched.wait();
      const CallingThread running(body_thread_);
      body();
      cuda::synchronize(device_.index);
    };
    return host_->run(std::move(here));
  }

  void barrier() override { host_->barrier(); }

 private:
  /// Returns a tensor in a host buffer. Throws in the body of a run(), for two reasons:
  ///  - The body runs on the host communicator's thread. Meanwhile, the thread that makes the calls
  ///    may use the same buffer.
  ///  - A buffer that has to grow waits for all earlier calls. The body would wait for itself.
  Tensor host_memory(PinnedBuffer& buffer, int64_t elements, DType dtype) {
    TESSERA_CHECK(body_thread_ != std::this_thread::get_id(),
                  "{}: a call inside run() cannot copy GPU memory to the host", name());
    return buffer.of(elements, dtype, wait_for_calls_);
  }

  /// Queues a copy of `buffer` to host memory behind the earlier calls. Returns the host memory.
  Tensor copy_to_host(const Tensor& buffer) {
    const Tensor mirror = host_memory(mirror_, buffer.elements(), buffer.dtype());
    run([buffer, mirror] { mirror.copy_from(buffer); });
    return mirror;
  }

  /// Wraps `receive` so that it gets every chunk in GPU memory. This rank's own chunks are views of
  /// `input`; chunks of other ranks are copied to the GPU.
  Receive on_device(const Tensor& input, Receive receive) {
    const int64_t own = input.elements() / size() * rank();
    // The lambda holds copies, because it may run while an exception destroys this communicator.
    return [input, own, rank = rank(), index = device_.index, stream = stream_,
            memory = chunk_.storage(), receive = std::move(receive)](int source, int64_t begin,
                                                                     const Tensor& chunk) {
      const cuda::StreamScope scope(index, stream);
      if (source == rank) {
        return receive(source, begin, input.flat(own + begin, own + begin + chunk.elements()));
      }
      Tensor there = Tensor::unallocated(chunk.shape(), chunk.dtype());
      there.attach(memory, 0);
      there.copy_from(chunk);
      receive(source, begin, there);
    };
  }

  std::atomic<std::thread::id> body_thread_;  // the thread that runs the body of a run(), if any
  std::shared_ptr<Communicator> host_;
  Device device_;
  void* stream_;
  Tensor chunk_;  // GPU memory for one chunk of the host communicator's staging
  PinnedBuffer mirror_;
  PinnedBuffer second_;  // the mirror for results that are not in place
  const std::function<void()> wait_for_calls_ = [this] { run([] {}).wait(); };
};

}  // namespace

int64_t staged_staging_bytes(int64_t ranks) { return one_chunk(mpi_staging_bytes(ranks), ranks); }

std::shared_ptr<Communicator> staged_communicator(std::shared_ptr<Communicator> host, int device) {
  return std::make_shared<StagedCommunicator>(std::move(host), device);
}

}  // namespace tessera::dist
