// Tests an evaluation whose batches are divided among the ranks, and that has more batches than one
// all-reduce takes.
#include "tests/support/catch.h"
#include "tests/support/token_average.h"
#include "tests/support/training.h"

namespace tessera::test {
namespace {

TEST_CASE("an evaluation of very many batches has the same bits on every rank") {
  const TokenAverage average = average_of_tokens(job_world());
  CHECK(average.evaluated == average.expected);
}

}  // namespace
}  // namespace tessera::test
