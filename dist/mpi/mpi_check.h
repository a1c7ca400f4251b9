// Checks calls of MPI: TESSERA_MPI(MPI_Barrier(comm)) throws on failure, with the text of the call
// and MPI's error message. Communicators must have MPI_ERRORS_RETURN.
#pragma once

#include <mpi.h>

#include "core/error.h"

namespace tessera::dist {

inline void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail("{}: {}", call, std::string(text, static_cast<size_t>(length)));
}

}  // namespace tessera::dist

#define TESSERA_MPI(call) ::tessera::dist::check_mpi((call), #call)
