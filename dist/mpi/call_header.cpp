#include "dist/mpi/call_header.h"

#include <algorithm>

#include "core/error.h"
#include "core/text/number_text.h"

namespace tessera::dist {

std::string CallHeader::text() const {
  if (collective == Collective::barrier || collective == Collective::split) {
    return fmt::format("{} (call {})", collective_name(collective), number);
  }
  std::string who;
  if (collective == Collective::broadcast) who = fmt::format(" from rank {}", ranks);
  if (collective == Collective::exchange || collective == Collective::reduce_scatter) {
    who = " from " + counted(ranks, "rank");
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

int32_t code_of(int64_t bytes, DType dtype) {
  constexpr int64_t prime = 2147483647;
  return static_cast<int32_t>((bytes % prime) ^ (static_cast<int64_t>(dtype) << 24));
}

void fail_disagreeing(const Channel& channel, const CallHeaders& headers, int peer) {
  const auto p = static_cast<size_t>(peer);
  const CallHeader& expected = headers.expected[p];
  const CallHeader& theirs = headers.received[p];
  const CallHeader& sent = headers.sent[p];
  CallHeader own = headers.own;
  own.number = expected.number;
  const int own_rank = channel.job_rank(channel.rank);
  const int peer_rank = channel.job_rank(peer);
  const std::string group = channel.group.empty() ? "" : " in group " + channel.group;
  const bool has_length_per_rank = own.collective == Collective::exchange_v ||
                                   own.collective == Collective::all_gather_v ||
                                   own.collective == Collective::send_receive;
  CallHeader as_expected = theirs;
  as_expected.bytes = expected.bytes;
  as_expected.dtype = expected.dtype;
  as_expected.ranks = expected.ranks;
  if (has_length_per_rank && as_expected == expected) {
    if (theirs.bytes == expected.bytes && theirs.dtype == expected.dtype) {
      fail("{}{}: rank {} sends {} bytes of {} to rank {}, which expects other data", own.text(),
           group, own_rank, sent.bytes, dtype_name(sent.dtype), peer_rank);
    }
    fail("{}{}: rank {} sends {} bytes of {} to rank {}, which expects {} bytes of {}", own.text(),
         group, peer_rank, theirs.bytes, dtype_name(theirs.dtype), own_rank, expected.bytes,
         dtype_name(expected.dtype));
  }
  const bool both_gather = own.collective == Collective::all_gather &&
                           theirs.collective == Collective::all_gather &&
                           own.purpose == Traffic::parameters && theirs.purpose == own.purpose;
  fail(
      "ranks make different calls{}: rank {} {}, rank {} {}; every rank must make the same calls "
      "in the same order{}",
      group, own_rank, own.text(), peer_rank, theirs.text(),
      both_gather ? ": where parameters are sharded, read them in the same order" : "");
}

}  // namespace tessera::dist
