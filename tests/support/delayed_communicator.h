// A communicator that imitates a slow network. It adds a known delay to each exchange and
// reduce_scatter, and optionally to each all_gather and all_gather_host. The communicator's own
// thread sleeps and makes the collective calls in order. A delayed call therefore returns at once,
// and its Work is complete only after the delay.
//
//   auto slow = std::make_shared<DelayedCommunicator>(world.communicator, 20ms, 5ms);
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <thread>

#include "core/cuda.h"
#include "core/trace.h"
#include "dist/host_work.h"

namespace tessera::dist {

class DelayedCommunicator : public Communicator {
 public:
  DelayedCommunicator(std::shared_ptr<Communicator> inner, std::chrono::nanoseconds reduction_delay,
                      std::chrono::nanoseconds gather_delay = {})
      : inner_(std::move(inner)),
        reduction_delay_(reduction_delay),
        gather_delay_(gather_delay),
        thread_([this] { serve(); }) {}

  ~DelayedCommunicator() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name() + " with a delay"; }
  std::string group() const override { return inner_->group(); }
  /// Returns a communicator without a delay.
  std::shared_ptr<Communicator> split(int color, int key, const std::string& group) override {
    std::shared_ptr<Communicator> part;
    submit(wait_name(Collective::split), {}, [&, this] {
      part = inner_->split(color, key, group);
      return Work();
    }).wait();
    return part;
  }
  Device device() const override { return inner_->device(); }
  int64_t staging_bytes() const override { return inner_->staging_bytes(); }
  int64_t header_bytes() const override { return inner_->header_bytes(); }
  void set_timeout(double seconds) override { inner_->set_timeout(seconds); }
  TrafficLedger& traffic() override { return inner_->traffic(); }
  std::shared_ptr<Storage> allocate(int64_t bytes, Category category) override {
    return inner_->allocate(bytes, category);
  }

  Work exchange(const Tensor& input, int contributors, Receive receive, Call call) override {
    return submit(wait_name(Collective::exchange), call,
                  [this, input, contributors, receive = std::move(receive), call] {
                    sleep(reduction_delay_, call);
                    return inner_->exchange(input, contributors, receive, call);
                  });
  }
  Work reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                      Call call) override {
    return submit(wait_name(Collective::reduce_scatter), call,
                  [this, shard, input, contributors, call] {
                    sleep(reduction_delay_, call);
                    return inner_->reduce_scatter(shard, input, contributors, call);
                  });
  }
  Work all_gather(const Tensor& buffer, Call call) override {
    return submit(wait_name(Collective::all_gather), call, [this, buffer, call] {
      sleep(gather_delay_, call);
      return inner_->all_gather(buffer, call);
    });
  }
  Work all_gather_host(const Tensor& buffer, Call call) override {
    return submit(wait_name(Collective::all_gather), call, [this, buffer, call] {
      sleep(gather_delay_, call);
      return inner_->all_gather_host(buffer, call);
    });
  }
  Work all_reduce(const Tensor& buffer, Call call) override {
    return submit(wait_name(Collective::all_reduce), call,
                  [this, buffer, call] { return inner_->all_reduce(buffer, call); });
  }
  Work broadcast(const Tensor& buffer, int root, Call call) override {
    return submit(wait_name(Collective::broadcast), call,
                  [this, buffer, root, call] { return inner_->broadcast(buffer, root, call); });
  }
  Work exchange_v(const Tensor& input, const Tensor& output, ExchangeCounts counts,
                  Call call) override {
    return submit(wait_name(Collective::exchange_v), call, [this, input, output, counts, call] {
      return inner_->exchange_v(input, output, counts, call);
    });
  }
  Work all_gather_v(const Tensor& buffer, std::vector<int64_t> counts, Call call) override {
    return submit(wait_name(Collective::all_gather_v), call, [this, buffer, counts, call] {
      return inner_->all_gather_v(buffer, counts, call);
    });
  }
  Work send_receive(const Transfer& outgoing, const Transfer& incoming, Call call) override {
    return submit(wait_name(Collective::send_receive), call, [this, outgoing, incoming, call] {
      return inner_->send_receive(outgoing, incoming, call);
    });
  }
  Work run(std::function<void()> body) override {
    return submit("wait run", {}, [this, body = std::move(body)] { return inner_->run(body); });
  }
  void barrier() override {
    submit(wait_name(Collective::barrier), {}, [this] {
      inner_->barrier();
      return Work();
    }).wait();
  }

  /// Number of calls that have been delayed so far.
  int64_t delayed() const { return delayed_; }

 private:
  struct Task {
    std::shared_ptr<HostWork> work;
    std::function<Work()> body;
  };

  void sleep(std::chrono::nanoseconds delay, Call call) {
    if (delay.count() == 0) return;
    const trace::Scope scope("delay", trace::Track::communication, {call.bucket},
                             [] { return std::string(); });
    std::this_thread::sleep_for(delay);
    ++delayed_;
  }

  Work submit(const char* name, Call call, std::function<Work()> body) {
    auto work = std::make_shared<HostWork>(name, call, thread_.get_id());
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back({work, std::move(body)});
    }
    changed_.notify_one();
    return Work(std::move(work));
  }

  void serve() {
    // Every thread starts with device 0.
    if (!inner_->device().is_cpu()) cuda::use_device(inner_->device().index);
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closing_ || !queue_.empty(); });
        if (queue_.empty()) return;
        task = std::move(queue_.front());
        queue_.pop_front();
      }
      try {
        task.body().wait();
        task.body = nullptr;
        task.work->finish();
      } catch (...) {
        task.work->fail(std::current_exception());
      }
    }
  }

  std::shared_ptr<Communicator> inner_;
  const std::chrono::nanoseconds reduction_delay_;
  const std::chrono::nanoseconds gather_delay_;
  std::atomic<int64_t> delayed_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> queue_;
  bool closing_ = false;
  std::thread thread_;  // last, because the thread uses all members above
};

}  // namespace tessera::dist
