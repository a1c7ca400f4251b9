#include "dist/mpi/call_header.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::dist {

std::string CallHeader::text() const {
  if (collective == Collective::barrier || collective == Collective::split) {
    return fmt::format("{} (call {})", collective_name(collective), number);
  }
  std::string who;
  if (collective == Collective::broadcast) who = fmt::format(" from rank {}", ranks);
  if (collective == Collective::exchange || collective == Collective::reduce_scatter) {
    who = fmt::format(" from {} rank{}", ranks, ranks == 1 ? "" : "s");
  }
  return fmt::format("{} of {} (call {}, {} bytes of {}{})", collective_name(collective),
                     call().text(), number, bytes, dtype_name(dtype), who);
}

CallHeaders::CallHeaders(int ranks)
    : sent(static_cast<size_t>(ranks)),
      expected(static_cast<size_t>(ranks)),
      received(static_cast<size_t>(ranks)) {}

void CallHeaders::set(const CallHeader& header) {
  own = header;
  std::fill(sent.begin(), sent.end(), header);
  std::fill(expected.begin(), expected.end(), header);
}

void fail_disagreeing(const Pair& pair, const CallHeader& own, const CallHeader& expected,
                      const CallHeader& theirs) {
  CallHeader as_expected = theirs;
  as_expected.bytes = expected.bytes;
  as_expected.dtype = expected.dtype;
  const bool has_length_per_rank = own.collective == Collective::exchange_v ||
                                   own.collective == Collective::all_gather_v ||
                                   own.collective == Collective::send_receive;
  if (has_length_per_rank && as_expected == expected) {
    fail("{}: rank {} sends {} bytes of {} to rank {}, which expects {} bytes of {}", own.text(),
         pair.peer, theirs.bytes, dtype_name(theirs.dtype), pair.rank, expected.bytes,
         dtype_name(expected.dtype));
  }
  const bool both_gather = own.collective == Collective::all_gather &&
                           theirs.collective == Collective::all_gather &&
                           own.purpose == Traffic::parameters && theirs.purpose == own.purpose;
  fail(
      "ranks make different calls: rank {} {}, rank {} {}; every rank must make the same calls in "
      "the same order{}",
      pair.rank, own.text(), pair.peer, theirs.text(),
      both_gather ? ": where parameters are sharded, read them in the same order" : "");
}

}  // namespace tessera::dist
