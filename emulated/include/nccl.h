// NCCL on emulated CUDA, over MPI (emulated/dist): the calls that Tessera uses, with the real
// header's names, signatures and values of constants. A call outside of a group does all of its
// work before it returns. The calls of a group do their work in the outermost ncclGroupEnd. If
// streams are deferred (emulated/deferred.h), the work runs when its stream reaches it, and a
// failure of the work is an asynchronous error. A call on a captured stream becomes part of the
// graph, and each launch of the graph makes the call. As in NCCL, a sum does not add the ranks'
// values in rank order.
//
// The following rules are checked. They are rules of NCCL, except where the list says otherwise:
//   - the ranks of a communicator are on different GPUs;
//   - every rank calls the same collectives in the same order, with the same count, dtype,
//     reduction and root. Ranks compare their calls before any data moves;
//   - every send has a receive of the same count and dtype;
//   - if two transfers between the same ranks share a group on one rank, they share a group on the
//     other rank too. In a group, one rank's sends and the other rank's receives are in the same
//     order. NCCL is less strict;
//   - every rank makes its calls in time (emulated/dist/control.h). If a rank is late or has ended,
//     the collectives and transfers of the other ranks fail. NCCL has no such time limit.
//     ncclCommInitRank and ncclCommSplit have no time limit, in the emulation as in NCCL;
//   - registered memory is deregistered before it is freed;
//   - buffers are in memory of the communicator's device. Send and receive buffer are either
//     disjoint or exactly in place;
//   - streams exist, and each ncclGroupEnd has an ncclGroupStart;
//   - each ncclGroupStart has an ncclGroupEnd. If not, the process is aborted when the thread ends;
//   - a communicator is not used again after one of its calls has failed. ncclCommGetAsyncError
//     reports the failure. Collectives, transfers, ncclCommSplit and ncclCommRegister return it
//     until ncclCommAbort or ncclCommDestroy. NCCL is less strict: after some calls with wrong
//     arguments, the communicator is still usable.
//
// Differences and limits:
//   - a communicator must have all ranks of MPI_COMM_WORLD, or be split from such a communicator;
//   - with several ranks, MPI must provide MPI_THREAD_MULTIPLE. A single rank does not use MPI.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstddef>

#define NCCL_VERSION_CODE 22809
#define NCCL_UNIQUE_ID_BYTES 128

using ncclComm_t = struct ncclComm*;
struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

enum ncclDataType_t {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
};

enum ncclRedOp_t { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 };

#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_SPLIT_NOCOLOR -1

struct ncclConfig_t {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
};

#define NCCL_CONFIG_INITIALIZER                                                              \
  {                                                                                          \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT,              \
        NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT                  \
  }

/// Explains the last failure in this process. Failures of ncclMemAlloc, ncclMemFree,
/// ncclCommRegister and ncclCommDeregister are not explained.
const char* ncclGetLastError(ncclComm_t comm);
const char* ncclGetErrorString(ncclResult_t result);
ncclResult_t ncclGetVersion(int* version);

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
/// Waits without a time limit for the other ranks of `comm`, as NCCL does.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
/// Aborts the communicator, from any thread. A collective or transfer in progress that still waits
/// for other ranks then fails. Returns when all graphs with captured calls of the communicator are
/// destroyed.
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);

/// Allocates memory of the current device.
ncclResult_t ncclMemAlloc(void** pointer, size_t bytes);
/// Frees memory from ncclMemAlloc. Returns an error if the memory is still registered with an
/// existing communicator.
ncclResult_t ncclMemFree(void* pointer);
/// Registers memory from ncclMemAlloc. A block can be registered only once per communicator.
ncclResult_t ncclCommRegister(ncclComm_t comm, void* buffer, size_t bytes, void** handle);
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle);

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count,
                               ncclDataType_t type, ncclRedOp_t reduction, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
