// Implements core/cuda.h in a build without CUDA.
#include "core/cuda.h"
#include "core/error.h"

namespace tessera::cuda {

namespace {
[[noreturn]] void refuse() { fail("cuda: {}", unusable()); }
}  // namespace

std::string unusable() { return "this build has no CUDA"; }
int device_count() { return 0; }
std::string device_name(int) { refuse(); }
int64_t multiprocessor_count(int) { refuse(); }
std::array<int64_t, 2> device_uuid(int) { refuse(); }
void use_device(int) { refuse(); }
void* current_stream(int) { refuse(); }
StreamScope::StreamScope(int, void*) : device_before_(-1), stream_before_(nullptr) { refuse(); }
StreamScope::~StreamScope() = default;
void* new_stream(int) { refuse(); }
void* copy_stream(int) { refuse(); }
Event::Event(int) : index_(-1) { refuse(); }
bool Event::passed() const { refuse(); }
bool Event::over() const { refuse(); }
void Event::wait() const { (void)index_; }
void Event::synchronize() const {}
void* allocate(int, int64_t, void*) { refuse(); }
void free(int, void*, void*, const MemoryLedger*) {}
void release_cached_memory(int) {}
void* allocate_pinned(int64_t) { refuse(); }
void free_pinned(void*) {}
void zero(int, void*, int64_t) { refuse(); }
void copy(int, void*, const void*, int64_t) { refuse(); }
void copy_and_wait(int, void*, const void*, int64_t) { refuse(); }
void synchronize(int) { refuse(); }
struct Graph::Captured {};
Graph::Graph(int, const std::function<void()>&) { refuse(); }
Graph::~Graph() = default;
void Graph::launch() {}
void refuse_in_capture(const char*) {}
std::shared_ptr<MemoryLedger> captured_memory() { return nullptr; }
void share_memory_with_host() { refuse(); }
bool memory_is_shared_with_host() { return false; }

}  // namespace tessera::cuda
