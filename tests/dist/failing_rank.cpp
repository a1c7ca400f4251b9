// A rank that fails in the middle of a loop of collectives, for tests/dist/failures.sh and
// tests/dist/watchdog.sh:
//
//   mpirun -n 3 failing_rank HOW [nccl [graph|host]]
//   mpirun -n 3 failing_rank HOW --comm-timeout=SECONDS
//
// There are 10 steps of at least 20 ms. HOW says what rank 1 does in step 6. If the job has only
// one rank, rank 0 does it.
//
//   throw memory input-one kill segv exit abort hang return mpi
//                   fails in the way that the name says
//   stop stall      is stopped, or sleeps for ever; the timeout is 2 s
//   suspend         sleeps for 2 s, while the test stops all ranks; the timeout is 4 s
//   other-call      makes a different call than the other ranks
//   handler ignore  sends itself SIGTERM, which the program handles or ignores
//
// With these values of HOW, something else happens:
//
//   none            no rank fails
//   input           all ranks fail in step 6
//   return-all      all ranks return 3 after the last step
//   return-256      all ranks return 256 after the last step
//   linger          rank 1 sleeps for ever after the last step; the timeout is 0.2 s
//   absent          with `nccl`, rank 1 sleeps for ever before the ranks connect over NCCL
//
// The program does not read --comm-timeout itself, so only dist::init sees the limit.
//
// With `nccl`, the ranks communicate over NCCL. The timeout of NCCL's calls is 4 s for suspend, and
// 1 s for every other HOW. The third argument changes the all_gather of each step:
//
//   graph           it is in a CUDA graph that exists until all steps are done
//   host            it gathers a buffer in host memory
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>

#include "dist/bootstrap.h"
#include "dist/device_choice.h"
#include "dist/fold.h"
#include "dist/mpi/mpi_check.h"

using namespace tessera;

namespace {

// Prints without buffering; may be called from a signal handler.
void say(std::string_view text) {
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(1);
}

void sleep_for_ever() {
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

void fail_in_step_6(const std::string& how, dist::World& world) {
  if (how == "input") fail_input("the file is empty");
  if (world.rank != std::min(1, world.size - 1)) return;
  if (how == "throw") fail("something went wrong");
  if (how == "memory") throw std::bad_alloc();
  if (how == "input-one") fail_input("this rank's file is empty");
  if (how == "kill") kill(getpid(), SIGKILL);
  if (how == "segv") kill(getpid(), SIGSEGV);
  if (how == "exit") std::exit(1);
  if (how == "abort") std::abort();
  if (how == "mpi") TESSERA_MPI(MPI_Send(nullptr, 0, MPI_BYTE, world.size, 0, MPI_COMM_WORLD));
  if (how == "handler" || how == "ignore") kill(getpid(), SIGTERM);
  if (how == "stop") kill(getpid(), SIGSTOP);
  if (how == "suspend") std::this_thread::sleep_for(std::chrono::seconds(2));
  if (how == "other-call") {
    world.communicator->broadcast(Tensor::zeros({7}), 0, {dist::Traffic::statistics, 9});
  }
  if (how == "hang" || how == "stall") sleep_for_ever();  // the test or a timeout ends the job
}

int train(dist::World& world, const std::string& how, const std::string& gathering) {
  const Tensor gradient = Tensor::zeros({world.size * int64_t{100'000}});
  const Tensor sum = Tensor::zeros({100'000});
  const auto fold = [sum](int, int64_t begin, const Tensor& chunk) {
    kernels::fold(current_context(sum.device()), sum.flat(begin, begin + chunk.elements()), chunk,
                  false);
  };
  const auto gather = [&] {
    if (gathering == "host") {
      const Tensor flags = Tensor::zeros({world.size}, DType::u8, Device{});
      world.communicator->all_gather_host(flags, {dist::Traffic::statistics}).wait();
    } else {
      world.communicator->all_gather(gradient, {dist::Traffic::parameters, 0}).wait();
    }
  };
  if (how == "stop" || how == "stall") world.communicator->set_timeout(2);
  if (how == "suspend") world.communicator->set_timeout(4);
  if (how == "linger") world.comm_timeout_s = 0.2;
  // The function is static and on the heap, so that an exception does not destroy the graph. An
  // abort of NCCL's calls would then wait for ever, so the job must end without such an abort.
  static std::function<void()>& gathers = *new std::function<void()>(gather);
  if (gathering == "graph") {
    gather();  // allocations of the first call must not happen during the capture
    gathers = world.communicator->capture(gather);
  }
  for (int64_t step = 0; step < 10; ++step) {
    const dist::Work reduced =
        world.communicator->exchange(gradient, world.size, fold, {dist::Traffic::gradients, 0});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (step == 5 && how == "suspend" && world.rank == 0) say("in step 6\n");
    dist::set_running_step(step);
    if (step == 5 && gathering != "host") fail_in_step_6(how, world);
    if (step == 5 && how == "return" && world.rank == std::min(1, world.size - 1)) return 3;
    reduced.wait();
    if (step == 5 && gathering == "host") fail_in_step_6(how, world);
    gathers();
    world.communicator->barrier();
    if (step == 5 && how == "hang") say("step 6 has ended\n");
    dist::set_finished_step(step);
  }
  gathers = nullptr;  // the graph must be destroyed before the communicator
  if (how == "linger" && world.rank == 1) sleep_for_ever();
  if (world.rank == 0) std::puts("all steps finished");
  if (how == "return-256") return 256;
  return how == "return-all" ? 3 : 0;
}

void say_handled(int) { say("the program's handler\n"); }

void handle_sigterm(const std::string& how) {
  struct sigaction action {};
  action.sa_handler = how == "ignore" ? SIG_IGN : say_handled;
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "none";
  if (how == "handler" || how == "ignore") handle_sigterm(how);
  return dist::run(argc, argv, [&](dist::World& world) {
    if (argc > 2 && std::string(argv[2]) == "nccl") {
      if (how == "absent" && world.rank == 1) sleep_for_ever();
      if (how == "absent") dist::nccl_communicator(0, {.timeout_s = 1});
      const double timeout_s = how == "suspend" ? 4 : 1;
      dist::choose_devices(world, {.device = "cuda", .comm = "nccl", .timeout_s = timeout_s});
    }
    return train(world, how, argc > 3 ? argv[3] : "");
  });
}
