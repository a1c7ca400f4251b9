// What does not depend on the transport: waiting for work, and texts of all ranks.
#include "dist/communicator.h"

#include <algorithm>
#include <cstring>

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
  }
  return "wait";
}

int64_t waited_ns() { return waited; }

void HostWork::wait() {
  std::unique_lock lock(mutex_);
  if (!done_) {
    const trace::Scope scope(wait_name_, trace::Track::waiting, call_.bucket,
                             [&] { return std::string(traffic_name(call_.purpose)); });
    const int64_t begin = trace::now_ns();
    ended_.wait(lock, [&] { return done_; });
    waited += trace::now_ns() - begin;
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

std::vector<std::string> gather_text(Communicator& communicator, const std::string& text) {
  const int64_t ranks = communicator.size();
  const int64_t rank = communicator.rank();

  const HostBuffer lengths(ranks, DType::i64, communicator);
  lengths.data<int64_t>()[rank] = static_cast<int64_t>(text.size());
  lengths.all_gather(communicator, Traffic::other).wait();
  lengths.fetch();
  const int64_t longest = *std::ranges::max_element(lengths.values().values<int64_t>());

  // In rounds of a few KiB a rank, so that a long text does not need memory for all of them at once
  // on every rank.
  const int64_t round = std::clamp<int64_t>((int64_t{1} << 20) / ranks, 4096, 65536);
  const HostBuffer pieces(ranks * round, DType::u8, communicator);
  auto* const bytes = reinterpret_cast<char*>(pieces.data<uint8_t>());

  std::vector<std::string> texts(rank == 0 ? static_cast<size_t>(ranks) : 0);
  for (int64_t begin = 0; begin < longest; begin += round) {
    const auto part = [&](int64_t r) {
      return std::clamp<int64_t>(lengths.data<int64_t>()[r] - begin, 0, round);
    };
    std::memcpy(bytes + rank * round, text.data() + std::min<size_t>(text.size(), begin),
                static_cast<size_t>(part(rank)));
    pieces.all_gather(communicator, Traffic::other).wait();
    pieces.fetch();
    for (size_t r = 0; r < texts.size(); ++r) {
      const auto source = static_cast<int64_t>(r);
      texts[r].append(bytes + source * round, static_cast<size_t>(part(source)));
    }
  }
  return texts;
}

}  // namespace tessera::dist
