// NCCL's functions: checks of arguments, groups of calls, and the table of communicators.
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <mpi.h>

#include "emulated/arena.h"
#include "emulated/capture.h"
#include "emulated/dist/communicator.h"
#include "emulated/dist/nccl_memory.h"
#include "emulated/errors.h"

struct ncclComm {};  // only a handle; State maps it to its communicator

namespace emulated::nccl {

namespace {

using Shared = std::shared_ptr<Communicator>;

struct State {
  std::mutex mutex;
  std::map<ncclComm_t, Shared> communicators;
  std::string last_error;
};

// Never destroyed, because communicators of static lifetime are destroyed after main.
State& state() {
  static auto& one = *new State;
  return one;
}

struct GroupedCall {
  Shared communicator;
  Call call;
  cudaStream_t stream;
};

// The calling thread's group of calls.
struct Group {
  int depth = 0;  // calls of ncclGroupStart without their ncclGroupEnd; 0 outside of a group
  std::vector<GroupedCall> calls;
  ncclResult_t failure = ncclSuccess;

  // If the thread ends without ncclGroupEnd, the calls of its group are never made. No later call
  // on this thread could return an error, so the process is aborted.
  ~Group() {
    if (depth == 0) return;
    (void)std::fprintf(stderr,
                       "emulated NCCL: a thread has ended within a group of %zu calls: "
                       "ncclGroupStart without ncclGroupEnd\n",
                       calls.size());
    std::abort();
  }
};
thread_local Group group;

ncclResult_t failed(ncclResult_t result, const std::string& why) {
  const std::lock_guard lock(state().mutex);
  state().last_error = why;
  return result;
}

template <class Body>
ncclResult_t guarded(Body&& body) {
  try {
    body();
    return ncclSuccess;
  } catch (const Failure& failure) {
    return failed(failure.result, failure.what());
  } catch (const std::exception& error) {
    return failed(ncclInternalError, error.what());
  }
}

// Returns shared ownership, so that an abort cannot destroy the communicator during a call.
Shared find(ncclComm_t comm) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().communicators.find(comm);
  if (found == state().communicators.end()) {
    throw Failure(ncclInvalidArgument, "there is no such communicator");
  }
  return found->second;
}

// Runs the calls immediately, except in two cases. On a captured stream the calls are recorded, and
// run at each launch of the graph. On a deferred stream the calls run when the stream reaches them.
void run(const Shared& communicator, std::vector<Call> calls, cudaStream_t stream) {
  const bool is_captured = captured(stream);
  if (!is_captured && !streams_are_deferred()) {
    const DeviceAccess access;
    return communicator->run(calls);
  }
  const auto graph = is_captured ? communicator->captured() : nullptr;
  const auto work = [communicator, calls = std::move(calls), graph] {
    const ncclResult_t result = guarded([&] { communicator->run(calls); });
    // If a call fails, Communicator::run records the failure in the communicator. If streams are
    // deferred, `work` then returns success, so that the stream goes on, as on a GPU. If streams
    // are not deferred, only a graph launch runs `work`. The launch then returns the failure.
    if (result == ncclSuccess || streams_are_deferred()) return cudaSuccess;
    return emulated::failed(cudaErrorUnknown, ncclGetLastError(nullptr));
  };
  const cudaError_t error =
      enqueue(stream, work, emulated::Kind::ranks, {communicator->sequence()});
  if (error != cudaSuccess) throw Failure(ncclUnhandledCudaError, cudaGetErrorString(error));
}

void run_group(std::vector<GroupedCall> calls) {
  while (!calls.empty()) {
    const Shared communicator = calls.front().communicator;
    const cudaStream_t stream = calls.front().stream;
    std::vector<Call> own;
    std::set<cudaStream_t> others;
    std::erase_if(calls, [&](const GroupedCall& grouped) {
      if (grouped.communicator != communicator) return false;
      own.push_back(grouped.call);
      if (grouped.stream != stream) others.insert(grouped.stream);
      return true;
    });
    // As in NCCL, the calls begin when all their streams have reached them, and later work of each
    // of these streams waits until the calls are done.
    for (const cudaStream_t other : others) {
      if (captured(stream) || captured(other)) {
        throw Failure(ncclInvalidUsage,
                      "a group with calls of one communicator on several streams is not emulated "
                      "while a stream is captured");
      }
      if (streams_are_deferred()) (void)defer_behind(stream, point_behind(other));
    }
    run(communicator, std::move(own), stream);
    if (!streams_are_deferred()) continue;
    const emulated::SharedPoint& behind = communicator->sequence()->latest;
    for (const cudaStream_t other : others) (void)defer_behind(other, behind);
  }
}

/// Like guarded(body), but a failure of the body makes the communicator unusable.
template <class Body>
ncclResult_t guarded(const Shared& communicator, Body&& body) {
  const ncclResult_t result = guarded(std::forward<Body>(body));
  if (result != ncclSuccess) communicator->fail(result);
  return result;
}

ncclResult_t make(ncclComm_t comm, cudaStream_t stream, const Call& call) {
  Shared communicator;
  ncclResult_t result = guarded([&] { communicator = find(comm); });
  if (result == ncclSuccess) {
    result = guarded(communicator, [&] {
      communicator->check(call);
      if (check_stream(stream, "") != cudaSuccess) {
        throw Failure(ncclInvalidArgument, text(call.operation) + ": there is no such stream");
      }
      if (group.depth > 0) {
        group.calls.push_back({communicator, call, stream});
      } else {
        run(communicator, {call}, stream);
      }
    });
  }
  if (group.depth > 0 && group.failure == ncclSuccess) group.failure = result;
  return result;
}

void check_world(int ranks, int rank) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  int world_ranks = 1;
  int world_rank = 0;
  if (initialized) {
    MPI_Comm_size(MPI_COMM_WORLD, &world_ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  }
  if (ranks == world_ranks && rank == world_rank) return;
  throw Failure(ncclInvalidArgument,
                "ncclCommInitRank: rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                    ", but the process is rank " + std::to_string(world_rank) + " of " +
                    std::to_string(world_ranks) + " in MPI_COMM_WORLD");
}

void check_ids(const ncclUniqueId& id, int ranks) {
  if (ranks == 1) return;
  std::vector<ncclUniqueId> all(static_cast<size_t>(ranks));
  MPI_Allgather(&id, sizeof(id), MPI_BYTE, all.data(), sizeof(id), MPI_BYTE, MPI_COMM_WORLD);
  for (const ncclUniqueId& other : all) {
    if (std::memcmp(&other, &id, sizeof(id)) != 0) {
      throw Failure(ncclInvalidArgument, "ncclCommInitRank: ranks have different ids");
    }
  }
}

void check_devices(int device, int ranks) {
  if (ranks == 1) return;
  cudaDeviceProp properties{};
  (void)cudaGetDeviceProperties(&properties, device);
  const cudaUUID_t own = properties.uuid;
  std::vector<cudaUUID_t> all(static_cast<size_t>(ranks));
  MPI_Allgather(&own, sizeof(own), MPI_BYTE, all.data(), sizeof(own), MPI_BYTE, MPI_COMM_WORLD);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (size_t other = 0; other < rank; ++other) {
      if (std::memcmp(&all[rank], &all[other], sizeof(own)) != 0) continue;
      throw Failure(ncclInvalidUsage, "ncclCommInitRank: ranks " + std::to_string(other) + " and " +
                                          std::to_string(rank) + " share a GPU");
    }
  }
}

void check_config(const ncclConfig_t& config) {
  const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
  if (config.magic != initial.magic || config.size != initial.size) {
    throw Failure(ncclInvalidArgument, "the configuration was not initialised");
  }
  if (config.blocking == 0) {
    throw Failure(ncclInvalidArgument, "communicators that do not block are not emulated");
  }
}

ncclComm_t handle_of(Shared communicator) {
  auto* const handle = new ncclComm;
  const std::lock_guard lock(state().mutex);
  state().communicators.emplace(handle, std::move(communicator));
  return handle;
}

Call call_of(Kind kind, const void* send, void* receive, size_t count, ncclDataType_t type,
             int reduction, int rank) {
  return {{kind, static_cast<int32_t>(type), reduction, rank, count}, send, receive};
}

}  // namespace

}  // namespace emulated::nccl

using namespace emulated::nccl;

const char* ncclGetLastError(ncclComm_t) {
  static thread_local std::string copy;
  const std::lock_guard lock(state().mutex);
  copy = state().last_error;
  return copy.c_str();
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  for (char& byte : id->internal) byte = static_cast<char>(random());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  return ncclCommInitRankConfig(comm, ranks, id, rank, &config);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return guarded([&] {
    check_config(*config);
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) {
      throw Failure(ncclUnhandledCudaError, "there is no device");
    }
    check_world(ranks, rank);
    check_ids(id, ranks);
    check_devices(device, ranks);
    *comm = handle_of(std::make_shared<Communicator>(rank, ranks, device));
  });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  return guarded([&] {
    if (config != nullptr) check_config(*config);
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
      throw Failure(ncclInvalidArgument, "ncclCommSplit: color " + std::to_string(color));
    }
    const Shared whole = find(comm);
    const ncclResult_t result = guarded(whole, [&] {
      Shared communicator = whole->split(color, key);
      *part = communicator ? handle_of(std::move(communicator)) : nullptr;
    });
    if (result != ncclSuccess) throw Failure(result, ncclGetLastError(comm));
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return guarded([&] {
    const Shared communicator = find(comm);
    {
      const std::lock_guard lock(state().mutex);
      state().communicators.erase(comm);
    }
    end_registrations(comm);
    delete comm;
    communicator->leave();
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const ncclResult_t result = guarded([&] {
    if (const auto last = find(comm)->sequence()->latest) (void)emulated::wait_for(last);
  });
  return result == ncclSuccess ? ncclCommAbort(comm) : result;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return guarded([&] { *error = find(comm)->failure(); });
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return make(comm, stream,
              call_of(Kind::all_reduce, send, receive, count, type, reduction, -1));
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t receive_count,
                               ncclDataType_t type, ncclRedOp_t reduction, ncclComm_t comm,
                               cudaStream_t stream) {
  return make(comm, stream,
              call_of(Kind::reduce_scatter, send, receive, receive_count, type, reduction, -1));
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t send_count,
                           ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return make(comm, stream,
              call_of(Kind::all_gather, send, receive, send_count, type, -1, -1));
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return make(comm, stream, call_of(Kind::broadcast, send, receive, count, type, -1, root));
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return make(comm, stream, call_of(Kind::send, send, nullptr, count, type, -1, peer));
}

ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return make(comm, stream, call_of(Kind::receive, nullptr, receive, count, type, -1, peer));
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) return failed(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return ncclSuccess;
  const ncclResult_t failure = std::exchange(group.failure, ncclSuccess);
  const std::vector<GroupedCall> calls = std::exchange(group.calls, {});
  const ncclResult_t result =
      failure != ncclSuccess ? failure : guarded([&] { run_group(calls); });
  // A group fails as a whole, so all communicators of the group become unusable.
  if (result != ncclSuccess) {
    for (const GroupedCall& grouped : calls) grouped.communicator->fail(result);
  }
  return result;
}
