// Reads from the environment whether a launcher (mpirun, srun) has started this process.
#pragma once

namespace tessera::dist {

/// True if MPI must be initialised. This is so if a variable of Open MPI, MPICH, Intel MPI or PMIx
/// (prterun, srun --mpi=pmix) is set, or if a launcher has started several processes.
bool started_by_launcher();

/// Throws InputError if the launcher has started several processes that MPI does not connect. Each
/// process would train alone, and all processes would write the same files. `ranks` is the number
/// of ranks that MPI has connected, or 1 without MPI.
void check_launcher(int ranks);

}  // namespace tessera::dist
