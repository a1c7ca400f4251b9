// A library that the CUDA driver loads into a program if the environment variable
// CUDA_INJECTION64_PATH names the library. It records when kernels, copies and memsets ran on the
// device, within CUDA graphs too. For each of them, the library writes a line "start end name", in
// nanoseconds, to the file that TESSERA_KERNEL_TIMES names.
//
//   CUDA_INJECTION64_PATH=libbench_kernel_times.so TESSERA_KERNEL_TIMES=times.txt program ...
//
// bench/gpu.py computes the idle time of the device from these lines. Recording slows the host, so
// a run without recording has at most this idle time.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include <cupti.h>

namespace {

constexpr size_t buffer_bytes = size_t{8} << 20;

std::FILE* output = nullptr;

void check(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = "";
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "kernel_times: %s: %s\n", call, text);
  std::exit(1);
}

void write(uint64_t start, uint64_t end, const char* name) {
  std::fprintf(output, "%llu %llu %s\n", static_cast<unsigned long long>(start),
               static_cast<unsigned long long>(end), name);
}

void write(const CUpti_Activity* record) {
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    write(kernel->start, kernel->end, kernel->name);
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
    write(copy->start, copy->end, "memcpy");
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto* memset = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
    write(memset->start, memset->end, "memset");
  }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, buffer_bytes));
  *bytes = *buffer == nullptr ? 0 : buffer_bytes;
  *most_records = 0;  // 0: as many as fit
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) write(record);
  std::free(buffer);
}

void finish() {
  cuptiActivityFlushAll(1);
  std::fclose(output);
}

}  // namespace

/// The driver calls this function. Returns 0 if there is no file to write, else 1.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  const char* path = std::getenv("TESSERA_KERNEL_TIMES");
  output = path == nullptr ? nullptr : std::fopen(path, "w");
  if (output == nullptr) {
    std::fprintf(stderr, "kernel_times: TESSERA_KERNEL_TIMES names no file that can be written\n");
    return 0;
  }
  check(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
        CUPTI_ACTIVITY_KIND_MEMSET}) {
    check(cuptiActivityEnable(kind), "cuptiActivityEnable");
  }
  std::atexit(finish);
  return 1;
}
