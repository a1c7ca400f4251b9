// A rank that fails in the middle of a loop of collectives, for tests/dist/failures.sh:
//
//   mpirun -n 3 failing_rank HOW [nccl [graph]]
//     HOW: throw input input-one kill segv exit abort hang none return return-all
//
// Rank 1 fails in step 5 (the last rank, if there is no rank 1); each step takes some milliseconds.
// With nccl the ranks talk over NCCL, and a collective may take a second; with graph the gather is
// in a graph that lives until all steps are done.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "dist/bootstrap.h"
#include "dist/device_choice.h"
#include "dist/fold.h"

using namespace tessera;

namespace {

void fail_in_step_5(const std::string& how, dist::World& world) {
  if (how == "input") fail_input("the file is empty");
  if (world.rank != std::min(1, world.size - 1)) return;
  if (how == "throw") fail("something went wrong");
  if (how == "input-one") fail_input("this rank's file is empty");
  if (how == "kill") kill(getpid(), SIGKILL);
  if (how == "segv") kill(getpid(), SIGSEGV);
  if (how == "exit") std::exit(1);
  if (how == "abort") std::abort();
  // Forever: whoever runs the job ends it.
  while (how == "hang") std::this_thread::sleep_for(std::chrono::seconds(1));
}

int train(dist::World& world, const std::string& how, bool with_graph) {
  const Tensor gradient = Tensor::zeros({world.size * int64_t{100'000}});
  const Tensor sum = Tensor::zeros({100'000});
  const auto fold = [sum](int, int64_t begin, const Tensor& chunk) {
    kernels::fold(current_context(sum.device()), sum.flat(begin, begin + chunk.elements()), chunk,
                  false);
  };
  const auto gather = [&] {
    world.communicator->all_gather(gradient, {dist::Traffic::parameters, 0}).wait();
  };
  // Not let go by an exception that unwinds: the graph is there when the job is aborted.
  static std::function<void()>& gathers = *new std::function<void()>(gather);
  if (with_graph) {
    gather();  // what allocates at its first call does so here
    gathers = world.communicator->capture(gather);
  }
  for (int64_t step = 0; step < 10; ++step) {
    const dist::Work reduced =
        world.communicator->exchange(gradient, world.size, fold, {dist::Traffic::gradients, 0});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (step == 5) fail_in_step_5(how, world);
    if (step == 5 && how == "return" && world.rank == std::min(1, world.size - 1)) return 3;
    reduced.wait();
    gathers();
    world.communicator->barrier();
    dist::set_finished_step(step);
  }
  gathers = nullptr;  // before the communicator
  if (world.rank == 0) std::puts("all steps finished");
  return how == "return-all" ? 3 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dist::run(argc, argv, [&](dist::World& world) {
    if (argc > 2 && std::string(argv[2]) == "nccl") {
      dist::choose_devices(world, {.device = "cuda", .comm = "nccl", .timeout_s = 1});
    }
    return train(world, argc > 1 ? argv[1] : "none", argc > 3);
  });
}
