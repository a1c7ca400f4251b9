#include "dist/launcher.h"

#include <cstdlib>
#include <string>

#include "core/error.h"

namespace tessera::dist {
namespace {

// The number of processes that the launcher has started, and the environment variable that contains
// this number.
struct Launched {
  const char* variable = nullptr;
  std::string size;
};

// Slurm's variable is read last: if mpirun starts the ranks within a Slurm allocation, Slurm's
// variable counts mpirun's daemons.
Launched launched() {
  for (const char* variable :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    if (const char* const size = std::getenv(variable)) return {variable, size};
  }
  return {};
}

}  // namespace

bool started_by_launcher() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"}) {
    if (std::getenv(variable) != nullptr) return true;
  }
  const Launched found = launched();
  return found.variable != nullptr && found.size != "1";
}

void check_launcher(int ranks) {
  const auto [variable, size] = launched();
  // If there are several ranks, MPI has connected the job. The number of ranks is not compared with
  // the launcher's number, because Slurm's number may count mpirun's daemons.
  if (variable == nullptr || size == "1" || ranks > 1) return;
  fail_input(
      "the launcher has started {} processes ({}), but MPI does not connect them: start the "
      "program with the mpirun of the MPI that it was built with, or with srun and a type of --mpi "
      "(pmix, pmi2) that this MPI supports",
      size, variable);
}

}  // namespace tessera::dist
