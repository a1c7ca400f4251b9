// Tests that EarlySignals keeps the signals that come before a run has its RunCheckpoints.
#include <signal.h>

#include <stdexcept>

#include "models/gpt/gpt.h"
#include "tests/support/catch.h"
#include "tests/support/signal_handler.h"
#include "tests/support/temporary_folder.h"
#include "train/checkpoint/run_checkpoints.h"

using namespace tessera;
using namespace tessera::train;
using test::handler_of;

namespace {

// Gives SIGUSR1 and SIGUSR2 their default actions, at construction and again at destruction.
struct DefaultActions {
  DefaultActions() { set(); }
  ~DefaultActions() { set(); }
  static void set() {
    for (const int number : {SIGUSR1, SIGUSR2}) ::signal(number, SIG_DFL);
  }
};

// Returns RunCheckpoints::notes() right after construction. In the first step, these bits tell all
// ranks what this rank's signals ask for.
uint8_t first_notes() {
  const test::TemporaryFolder folder;
  const dist::World world{.communicator = dist::single_communicator()};
  models::Gpt model({.layers = 1, .heads = 1, .width = 4, .context = 4, .vocab = 5});
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, {});
  RunLog log("");
  return RunCheckpoints({.folder = folder.path("saved")}, world, optimizer, log, {}).notes();
}

}  // namespace

TEST_CASE("signals from before a run's checkpoints are asked for in the first step, once") {
  const DefaultActions actions;
  {
    const EarlySignals signals(true);
    ::raise(SIGUSR1);
    const uint8_t notes = first_notes();
    CHECK(notes != 0);
    CHECK_FALSE(RunCheckpoints::stops(notes));
    CHECK(first_notes() == 0);
  }
  const EarlySignals signals(true);
  ::raise(SIGUSR2);
  CHECK(RunCheckpoints::stops(first_notes()));
}

TEST_CASE("a SIGTERM that came during the start takes effect if the start fails") {
  const DefaultActions actions;
  static volatile sig_atomic_t count;
  struct sigaction before {};
  sigaction(SIGTERM, nullptr, &before);
  ::signal(SIGTERM, [](int) { count = count + 1; });
  const auto start = [](bool fails, bool told) {
    count = 0;
    try {
      const EarlySignals signals(true);
      if (told) ::raise(SIGTERM);
      if (fails) throw std::runtime_error("bad data");
    } catch (const std::runtime_error&) {
    }
    return static_cast<int>(count);
  };
  CHECK(start(true, true) == 1);
  CHECK(start(true, false) == 0);
  CHECK(start(false, true) == 0);
  sigaction(SIGTERM, &before, nullptr);
}

TEST_CASE("without checkpoints, early signals are handled until the program ends its start") {
  const DefaultActions actions;
  const auto told = handler_of(SIGTERM);
  {
    const EarlySignals signals(false);
    CHECK(handler_of(SIGUSR1) == SIG_DFL);
    CHECK(handler_of(SIGTERM) == told);
  }
  CHECK(handler_of(SIGUSR1) == SIG_DFL);
  {
    const EarlySignals signals(true);
    CHECK(handler_of(SIGTERM) != told);
  }
  CHECK(handler_of(SIGTERM) == told);
  CHECK(handler_of(SIGUSR1) == SIG_IGN);  // a late SIGUSR1 must not end the program
  const EarlySignals signals(true);
  ::raise(SIGTERM);
  EarlySignals::end();
  CHECK(handler_of(SIGTERM) == told);
  CHECK(first_notes() == 0);
}
