// The main function of test programs that run under mpirun. Every rank runs the same test cases in
// the same order. Rank 0 always prints its report. Every other rank prints its report only if its
// status is not 0, or if it ends the job. The exit status is the largest status of all ranks.
#define CATCH_CONFIG_EXTERNAL_INTERFACES  // for the listener below
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/run_cases.h"

#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

#if __has_include(<catch2/catch_all.hpp>)
using Listener = Catch::EventListenerBase;
char colour_flag[] = "--colour-mode", no_colour[] = "none";
#else
using Listener = Catch::TestEventListenerBase;
char colour_flag[] = "--use-colour", no_colour[] = "no";
#endif

int rank = 0;
MPI_Comm ranks = MPI_COMM_NULL;  // copy of MPI_COMM_WORLD, to keep messages apart from Tessera's
std::ostringstream report;       // the output of Catch2 on ranks other than 0

void print_report() {
  std::istringstream lines(report.str());
  for (std::string line; std::getline(lines, line);) {
    std::fprintf(stderr, "[rank %d] %s\n", rank, line.c_str());
  }
  report.str("");
}

[[noreturn]] void abort_all(const std::string& reason) {
  std::cout.flush();
  print_report();
  std::fprintf(stderr, "[rank %d] %s\n", rank, reason.c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

// After each run through a case, the ranks meet in a barrier. A failed REQUIRE ends the case on one
// rank only, and the other ranks may then wait for this rank in a collective forever. Therefore a
// rank with a failure waits at the barrier for at most ten seconds. If other ranks have not reached
// the barrier by then, the waiting rank prints its report and ends the job.
class MeetingPoint : public Listener {
 public:
  using Listener::Listener;

  void sectionStarting(const Catch::SectionInfo&) override { ++depth_; }

  void sectionEnded(const Catch::SectionStats& stats) override {
    if (--depth_ == 0) meet(stats.sectionInfo.name, stats.assertions.allOk());
  }

  // If a signal ends the case inside a SECTION, Catch2 does not report the end of the SECTION. So
  // sectionEnded() has not called meet().
  void testCaseEnded(const Catch::TestCaseStats&) override {
    if (depth_ > 0) meet("a case that a signal ended", false);
    depth_ = 0;
  }

 private:
  static void meet(const std::string& name, bool passed) {
    using namespace std::chrono;
    const auto deadline = steady_clock::now() + seconds(10);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(ranks, &request);
    for (int met = 0; !met;) {
      MPI_Test(&request, &met, MPI_STATUS_IGNORE);
      if (met) break;
      if (!passed && steady_clock::now() > deadline) {
        abort_all("failed in " + name + ", and other ranks still wait in it");
      }
      std::this_thread::sleep_for(microseconds(50));
    }
  }

  int depth_ = 0;  // number of open sections; the case itself counts as a section
};
CATCH_REGISTER_LISTENER(MeetingPoint)

int rank_on_this_host() {
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host);
  int local_rank = 0;
  MPI_Comm_rank(host, &local_rank);
  MPI_Comm_free(&host);
  return local_rank;
}

int run_session(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  // All ranks must run the cases in the same order, but some versions of Catch2 use a random order
  // by default. Colours are switched off: mpirun gives the ranks a pseudo-terminal, and Catch2
  // prints colours to a terminal.
  char order_flag[] = "--order", order[] = "decl";
  arguments.insert(arguments.begin() + 1, {order_flag, order, colour_flag, no_colour});
  return tessera::test::run_cases(static_cast<int>(arguments.size()), arguments.data());
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_dup(MPI_COMM_WORLD, &ranks);
  if (provided < MPI_THREAD_MULTIPLE) abort_all("MPI does not provide MPI_THREAD_MULTIPLE");
  tessera::test::use_test_device(rank_on_this_host());
  std::streambuf* const terminal = std::cout.rdbuf();
  if (rank != 0) std::cout.rdbuf(report.rdbuf());

  int worst = 0;
  try {
    const int result = run_session(argc, argv);
    if (result != 0) print_report();
    MPI_Allreduce(&result, &worst, 1, MPI_INT, MPI_MAX, ranks);
  } catch (const std::exception& error) {
    abort_all(error.what());
  }
  std::cout.rdbuf(terminal);
  MPI_Comm_free(&ranks);
  MPI_Finalize();
  return worst;
}
