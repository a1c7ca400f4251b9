#include "course/lib/observer.h"

#include <algorithm>
#include <map>

#include "core/digest.h"
#include "dist/shard_layout.h"

namespace course {

// The calls in the order in which the student started them. A call is pending until it is made:
// passed to the inner communicator and waited for there. The Work objects share the queue. Pending
// calls use the observer, so none may be left when the observer is destroyed: wait for every call,
// or call finish().
class Observer::Queue {
 public:
  Queue(bool late, Events& events) : late_(late), events_(events) {}

  struct Pending {
    std::string name;
    dist::Call call;
    Tensor watched;  // the memory that the call reads; undefined: no check for races
    uint64_t digest = 0;
    std::function<dist::Work()> make;
  };

  int64_t add(Pending pending) {
    const int64_t number = first_ + std::ssize(pending_);
    unwaited_[number] = {pending.name, pending.call};
    pending_.push_back(std::move(pending));
    if (!late_) make_until(number);
    return number;
  }
  bool made(int64_t number) const { return number < first_; }
  void wait(int64_t number) {
    const auto found = unwaited_.find(number);
    if (found != unwaited_.end()) {
      const dist::Call& call = found->second.call;
      events_.add({.kind = "wait", .purpose = call.purpose, .bucket = call.bucket});
      unwaited_.erase(found);
    }
    make_until(number);
  }

  // Waits for every call that the student has not waited for yet. Observer::split() and barrier()
  // begin with this wait, because split() and barrier() of every communicator return only after all
  // earlier calls are done. The student may then read the results without waiting for the calls.
  void wait_for_all() {
    while (!unwaited_.empty()) wait(unwaited_.begin()->first);
    make_until(first_ + std::ssize(pending_) - 1);
  }

  void make_until(int64_t number) {
    while (first_ <= number) {
      const Pending next = std::move(pending_.front());
      pending_.pop_front();
      ++first_;
      if (next.watched.defined() && digest_of(next.watched) != next.digest) {
        races.push_back(next.name);
      }
      next.make().wait();
    }
  }

  std::vector<std::string> finish() {
    make_until(first_ + std::ssize(pending_) - 1);
    std::vector<std::string> names;
    for (const auto& [number, call] : unwaited_) names.push_back(call.name);
    unwaited_.clear();
    return names;
  }

  static uint64_t digest_of(const Tensor& tensor) {
    return xxh3({static_cast<const std::byte*>(tensor.raw()), static_cast<size_t>(tensor.bytes())});
  }

  std::vector<std::string> races;

 private:
  struct Started {
    std::string name;
    dist::Call call;
  };
  bool late_;
  Events& events_;
  int64_t first_ = 0;  // number of the first call that is not made yet
  std::deque<Pending> pending_;
  std::map<int64_t, Started> unwaited_;  // calls not waited for, by their number
};

namespace {

class LateWork : public dist::Work::State {
 public:
  LateWork(std::shared_ptr<Observer::Queue> queue, int64_t number)
      : queue_(std::move(queue)), number_(number) {}
  void wait() override { queue_->wait(number_); }
  bool done() const override { return queue_->made(number_); }

 private:
  std::shared_ptr<Observer::Queue> queue_;
  int64_t number_;
};

}  // namespace

Observer::Observer(dist::Communicator& inner, Events& events, bool late)
    : inner_(inner), events_(events), queue_(std::make_shared<Queue>(late, events)) {}

Observer::~Observer() = default;

std::vector<std::string> Observer::finish() { return queue_->finish(); }

const std::vector<std::string>& Observer::races() const { return queue_->races; }

dist::Work Observer::add(const std::string& name, const Tensor& watched,
                         std::function<dist::Work()> make, dist::Call call) {
  events_.add({.kind = name, .purpose = call.purpose, .bucket = call.bucket});
  const uint64_t digest = watched.defined() ? Queue::digest_of(watched) : 0;
  const int64_t number =
      queue_->add({name + " of " + call.text(), call, watched, digest, std::move(make)});
  return dist::Work(std::make_shared<LateWork>(queue_, number));
}

std::shared_ptr<dist::Communicator> Observer::split(int color, int key, const std::string& group) {
  queue_->wait_for_all();
  return inner_.split(color, key, group);
}

// Passes pieces to `receive` in chunks of 256 elements, the smallest chunks that
// Communicator::Receive allows. Code that wrongly expects a whole piece in one chunk then fails.
dist::Work Observer::exchange(const Tensor& input, int contributors, Receive receive,
                              dist::Call call) {
  const Receive in_chunks = [receive](int source, int64_t begin, const Tensor& chunk) {
    for (int64_t i = 0; i < chunk.elements(); i += dist::block_elements) {
      const int64_t end = std::min(chunk.elements(), i + dist::block_elements);
      receive(source, begin + i, chunk.flat(i, end));
    }
  };
  return add(
      "exchange", input,
      [this, input, contributors, in_chunks, call] {
        return inner_.exchange(input, contributors, in_chunks, call);
      },
      call);
}

dist::Work Observer::reduce_scatter(const Tensor& shard, const Tensor& input, int contributors,
                                    dist::Call call) {
  return add(
      "reduce_scatter", input,
      [this, shard, input, contributors, call] {
        return inner_.reduce_scatter(shard, input, contributors, call);
      },
      call);
}

dist::Work Observer::all_gather(const Tensor& buffer, dist::Call call) {
  const int64_t piece = buffer.elements() / size();
  const Tensor flat = buffer.view({buffer.elements()});
  return add(
      "all_gather", flat.flat(rank() * piece, (rank() + 1) * piece),
      [this, buffer, call] { return inner_.all_gather(buffer, call); }, call);
}

dist::Work Observer::all_reduce(const Tensor& buffer, dist::Call call) {
  return add(
      "all_reduce", buffer, [this, buffer, call] { return inner_.all_reduce(buffer, call); }, call);
}

dist::Work Observer::broadcast(const Tensor& buffer, int root, dist::Call call) {
  return add(
      "broadcast", rank() == root ? buffer : Tensor(),
      [this, buffer, root, call] { return inner_.broadcast(buffer, root, call); }, call);
}

dist::Work Observer::exchange_v(const Tensor& input, const Tensor& output,
                                dist::ExchangeCounts counts, dist::Call call) {
  return add(
      "exchange_v", input,
      [this, input, output, counts, call] {
        return inner_.exchange_v(input, output, counts, call);
      },
      call);
}

dist::Work Observer::all_gather_v(const Tensor& buffer, std::vector<int64_t> counts,
                                  dist::Call call) {
  return add(
      "all_gather_v", {},
      [this, buffer, counts, call] { return inner_.all_gather_v(buffer, counts, call); }, call);
}

dist::Work Observer::send_receive(const dist::Transfer& outgoing, const dist::Transfer& incoming,
                                  dist::Call call) {
  return add(
      "send_receive", outgoing.buffer,
      [this, outgoing, incoming, call] { return inner_.send_receive(outgoing, incoming, call); },
      call);
}

dist::Work Observer::run(std::function<void()> body) {
  return add("run", {}, [this, body = std::move(body)] { return inner_.run(body); }, {});
}

void Observer::barrier() {
  queue_->wait_for_all();
  inner_.barrier();
}

}  // namespace course
