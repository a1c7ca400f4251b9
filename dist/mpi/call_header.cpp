#include "dist/mpi/call_header.h"

#include "core/error.h"

namespace tessera::dist {

std::string CallHeader::text() const {
  if (collective == Collective::barrier) return fmt::format("barrier (call {})", number);
  std::string who;
  if (collective == Collective::broadcast) who = fmt::format(" from rank {}", ranks);
  if (collective == Collective::exchange || collective == Collective::reduce_scatter) {
    who = fmt::format(" from {} rank{}", ranks, ranks == 1 ? "" : "s");
  }
  return fmt::format("{} of {} (call {}, {} bytes of {}{})", collective_name(collective),
                     call().text(), number, bytes, dtype_name(dtype), who);
}

void fail_disagreeing(int rank, const CallHeader& own, int peer, const CallHeader& theirs) {
  const bool both_gather = own.collective == Collective::all_gather &&
                           theirs.collective == Collective::all_gather &&
                           own.purpose == Traffic::parameters && theirs.purpose == own.purpose;
  fail(
      "ranks make different calls: rank {} {}, rank {} {}; every rank must make the same calls in "
      "the same order{}",
      rank, own.text(), peer, theirs.text(),
      both_gather ? ": where parameters are sharded, read them in the same order" : "");
}

}  // namespace tessera::dist
