// The code that all communicators share: waiting for work, capturing calls in a CUDA graph, and
// gathering texts.
#include "dist/communicator.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/cuda.h"
#include "core/error.h"
#include "core/trace.h"
#include "dist/host_buffer.h"
#include "dist/host_work.h"

namespace tessera::dist {

namespace {

thread_local int64_t waited = 0;

}  // namespace

const char* wait_name(Collective collective) {
  switch (collective) {
    case Collective::reduce_scatter:
    case Collective::exchange: return "wait reduce";
    case Collective::all_gather: return "wait gather";
    case Collective::all_reduce: return "wait all_reduce";
    case Collective::broadcast: return "wait broadcast";
    case Collective::barrier: return "wait barrier";
    case Collective::exchange_v: return "wait exchange";
    case Collective::all_gather_v: return "wait gather";
    case Collective::send_receive: return "wait send_receive";
    case Collective::split: return "wait split";
  }
  return "wait";
}

int64_t waited_ns() { return waited; }

void wait_in(const char* name, const Call& call, const std::function<void()>& body) {
  const trace::Scope scope(name, trace::Track::waiting, call.place(),
                           [&] { return std::string(traffic_name(call.purpose)); });
  const int64_t begin = trace::now_ns();
  body();
  waited += trace::now_ns() - begin;
}

std::function<void()> Communicator::capture(const std::function<void()>&) {
  fail("capture: {} communicates through the host, which a graph cannot capture", name());
}

std::function<void()> Communicator::capture_ordered(const std::function<void()>& body) {
  std::shared_ptr<cuda::Graph> graph;
  const TrafficLedger::Counts sent = traffic_.of(
      [&] { graph = std::make_shared<cuda::Graph>(device().index, body); });
  return [this, graph, sent] {
    graph->launch();
    traffic_.add(sent);
  };
}

std::string Call::text() const {
  return fmt::format("{}{}{}", traffic_name(purpose),
                     bucket < 0 ? "" : fmt::format(", bucket {}", bucket),
                     group == 0 ? "" : fmt::format(" of group {}", group));
}

void check_may_wait(std::thread::id server, const std::string& what) {
  TESSERA_CHECK(std::this_thread::get_id() != server,
                "{}: called inside run() or a Receive, where the communication thread would "
                "wait for itself; wait on the thread that makes the calls, or put the code after "
                "the wait into a run() of its own",
                what);
}

void HostWork::wait() {
  std::unique_lock lock(mutex_);
  if (!done_) {
    check_may_wait(server_, fmt::format("{} ({})", wait_name_, call_.text()));
    wait_in(wait_name_, call_, [&] { ended_.wait(lock, [&] { return done_; }); });
  }
  if (error_) std::rethrow_exception(error_);
}

bool HostWork::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void HostWork::end(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    error_ = std::move(error);
  }
  ended_.notify_all();
}

namespace {

// Bytes of text that each rank sends in one round. Texts are gathered in rounds, one part of each
// rank's text in a round, so that the buffer for the parts stays small, however long the texts are.
int64_t text_round(int64_t ranks) {
  return std::clamp<int64_t>((int64_t{1} << 20) / ranks, 4096, 65536);
}

/// Calls take(source, part) with the parts of every rank's text. The parts of each text come in
/// order. A part may be empty.
template <class Take>
void gather_parts(Communicator& communicator, const std::string& text, Take&& take) {
  const int64_t ranks = communicator.size();
  const int64_t rank = communicator.rank();

  const HostBuffer lengths(ranks, DType::i64, communicator);
  lengths.data<int64_t>()[rank] = static_cast<int64_t>(text.size());
  lengths.all_gather(communicator, Traffic::other).wait();
  const int64_t longest = *std::ranges::max_element(lengths.values().values<int64_t>());

  const int64_t round = text_round(ranks);
  const HostBuffer pieces(ranks * round, DType::u8, communicator);
  auto* const bytes = reinterpret_cast<char*>(pieces.data<uint8_t>());

  for (int64_t begin = 0; begin < longest; begin += round) {
    const auto part = [&](int64_t r) {
      return std::clamp<int64_t>(lengths.data<int64_t>()[r] - begin, 0, round);
    };
    std::memcpy(bytes + rank * round, text.data() + std::min<size_t>(text.size(), begin),
                static_cast<size_t>(part(rank)));
    pieces.all_gather(communicator, Traffic::other).wait();
    for (int64_t r = 0; r < ranks; ++r) {
      take(static_cast<size_t>(r),
           std::string_view(bytes + r * round, static_cast<size_t>(part(r))));
    }
  }
}

}  // namespace

int64_t text_exchange_bytes(int64_t ranks) {
  return ranks * (text_round(ranks) + static_cast<int64_t>(sizeof(int64_t)));
}

std::vector<std::string> gather_text(Communicator& communicator, const std::string& text) {
  std::vector<std::string> texts;
  if (communicator.rank() == 0) texts.resize(static_cast<size_t>(communicator.size()));
  gather_parts(communicator, text, [&](size_t source, std::string_view part) {
    if (!texts.empty()) texts[source] += part;
  });
  return texts;
}

std::string broadcast_text(Communicator& communicator, const std::string& text) {
  std::string result;  // only rank 0 contributes text
  gather_parts(communicator, communicator.rank() == 0 ? text : "",
               [&](size_t, std::string_view part) { result += part; });
  return result;
}

}  // namespace tessera::dist
