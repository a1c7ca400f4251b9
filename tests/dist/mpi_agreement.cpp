#include "dist/agreement.h"
#include "tests/dist/mpi_helpers.h"

using namespace tessera;
using namespace tessera::dist;

namespace {

std::string refusal(const Settings& own) {
  // The shared_ptr does not own the job's communicator, which later tests need.
  const World world{.communicator = std::shared_ptr<Communicator>(&job(), [](Communicator*) {}),
                    .rank = job().rank(),
                    .size = job().size()};
  try {
    check_agreement(world, own);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("ranks that agree send only a digest") {
  const Settings settings(100, {"name", std::string(1000, 'x')});
  const Counted counted(job());
  CHECK(refusal(settings).empty());
  if (job().size() > 1) {
    CHECK(counted.only(Collective::all_gather, Traffic::other, 8 * (job().size() - 1)));
  }
  CHECK(refusal({}).empty());
}

TEST_CASE("every rank reports the first difference") {
  const int last = job().size() - 1;
  const bool other = job().rank() == last && last > 0;
  const std::string expected = fmt::format(
      "--seed: rank 0 has 1, rank {} has 7; all ranks of a job must have the same value", last);
  // The lists have different lengths. One rank's list is longer than a round of gather_text.
  Settings own = {{"--stage", "2"}, {"--seed", other ? "7" : "1"}};
  if (other) own.push_back({"more", std::string(100'000, 'x')});
  CHECK(refusal(own) == (last > 0 ? expected : ""));
  // After the error the ranks can still communicate.
  CHECK(refusal({{"--stage", "2"}}).empty());
}

TEST_CASE("the settings ab = c and a = bc are different") {
  const bool other = job().rank() == 1;
  const Settings own = other ? Settings{{"a", "bc"}} : Settings{{"ab", "c"}};
  const std::string text = refusal(own);
  CHECK(text.starts_with(job().size() > 1 ? "ab: rank 0 has c" : ""));
  CHECK(text.empty() == (job().size() == 1));
}

TEST_CASE("ranks that give settings in different orders are told so") {
  if (job().size() == 1) return;
  const Settings own =
      job().rank() == 0 ? Settings{{"a", "1"}, {"b", "2"}} : Settings{{"b", "2"}, {"a", "1"}};
  CHECK(refusal(own) == "the ranks of a job must give settings in the same order");
}
