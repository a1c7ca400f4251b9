// A library that tests preload into a program (LD_PRELOAD). It counts the calls that change or
// examine files of a folder, and makes one of these calls fail.
//
//   FAULT_FOLDER=/tmp/run FAULT_CALLS=fsync,rename FAULT_AT=3 FAULT=kill LD_PRELOAD=... train_gpt
//
// FAULT_FOLDER: only calls for paths that contain this text are counted. For rename the new path
// must contain the text. For unlink the path of the folder that has the file must contain the text.
// FAULT_CALLS: the calls to count, one or more of write, fsync, rename, unlink, fstat and readdir.
// `write` includes pwrite. `unlink` stands for calls of unlinkat; calls of unlink itself are not
// counted.
// FAULT_AT: the number, from 1, of the counted call that fails.
// FAULT: kill (SIGKILL in place of the call), EIO, ENOSPC, or short (half of a write, then ENOSPC
// for all later writes in the folder).
// Without FAULT_AT, or if it is 0, the library only counts. When the program exits, the library
// writes the number of counted calls to the file FAULT_COUNT, if this variable is set. If
// FAULT_TRACE is set, the library appends a line with the call's name and path to the file
// FAULT_TRACE for each fsync and rename in the folder, even if FAULT_CALLS does not name the call.
// If FAULT_LOCK is set, it is the path of a file. If a call cannot make the file (O_EXCL) because
// it exists, the file is removed after this call, as by a process that gives its lock up at this
// time. With FAULT_DELAY_MS each write in the folder takes that many milliseconds longer, as on a
// slow disk.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::atomic<long> calls{0};
std::atomic<bool> out_of_space{false};

const char* setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool in_folder(const char* path) {
  const char* const folder = setting("FAULT_FOLDER");
  return *folder != '\0' && std::strstr(path, folder) != nullptr;
}

std::string path_of(int descriptor) {
  std::array<char, 64> link{};
  std::array<char, PATH_MAX> path{};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", descriptor);
  const ssize_t length = ::readlink(link.data(), path.data(), path.size() - 1);
  return length > 0 ? path.data() : "";
}

bool in_folder(int descriptor) { return in_folder(path_of(descriptor).c_str()); }

void trace(const char* name, const char* path) {
  const char* const to = setting("FAULT_TRACE");
  if (*to == '\0' || !in_folder(path)) return;
  std::FILE* const file = std::fopen(to, "a");
  if (file == nullptr) std::abort();
  std::fprintf(file, "%s %s\n", name, path);
  std::fclose(file);
}

void delay() {
  const long ms = std::atol(setting("FAULT_DELAY_MS"));
  if (ms > 0) ::usleep(static_cast<useconds_t>(ms * 1000));
}

bool is(const char* fault) { return std::strcmp(setting("FAULT"), fault) == 0; }

/// Counts the call if FAULT_CALLS names it. Returns true if this call must fail; kills the process
/// instead if FAULT is kill.
bool is_turn(const char* name) {
  if (std::strstr(setting("FAULT_CALLS"), name) == nullptr) return false;
  const bool turn = ++calls == std::atol(setting("FAULT_AT"));
  if (turn && is("kill")) ::kill(::getpid(), SIGKILL);
  return turn;
}

int fail_with(int error) {
  errno = error;
  return -1;
}

int fault_error() { return is("EIO") ? EIO : ENOSPC; }

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

void write_count() {
  const char* const path = setting("FAULT_COUNT");
  if (*path == '\0') return;
  std::FILE* const file = std::fopen(path, "w");
  if (file == nullptr) std::abort();
  std::fprintf(file, "%ld\n", calls.load());
  std::fclose(file);
}

struct AtExit {
  ~AtExit() { write_count(); }
} at_exit;

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* data, size_t bytes) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  if (!in_folder(descriptor)) return real(descriptor, data, bytes);
  delay();
  if (out_of_space) return fail_with(ENOSPC);
  if (!is_turn("write")) return real(descriptor, data, bytes);
  if (!is("short")) return fail_with(fault_error());
  out_of_space = true;
  return bytes < 2 ? fail_with(ENOSPC) : real(descriptor, data, bytes / 2);
}

ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t position) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  if (!in_folder(descriptor)) return real(descriptor, data, bytes, position);
  delay();
  if (out_of_space) return fail_with(ENOSPC);
  if (!is_turn("write")) return real(descriptor, data, bytes, position);
  if (!is("short")) return fail_with(fault_error());
  out_of_space = true;
  return bytes < 2 ? fail_with(ENOSPC) : real(descriptor, data, bytes / 2, position);
}

ssize_t pwrite64(int descriptor, const void* data, size_t bytes, off64_t position) {
  return pwrite(descriptor, data, bytes, position);
}

int fsync(int descriptor) {
  static auto* const real = next<int(int)>("fsync");
  trace("fsync", path_of(descriptor).c_str());
  const bool fails = in_folder(descriptor) && is_turn("fsync");
  return fails ? fail_with(fault_error()) : real(descriptor);
}

int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>("open");
  if ((flags & O_CREAT) == 0) return real(path, flags);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = va_arg(arguments, mode_t);
  va_end(arguments);
  const int descriptor = real(path, flags, mode);
  const bool exists = descriptor < 0 && errno == EEXIST && (flags & O_EXCL) != 0;
  if (exists && std::strcmp(path, setting("FAULT_LOCK")) == 0) {
    ::unlink(path);
    errno = EEXIST;
  }
  return descriptor;
}

int rename(const char* from, const char* to) {
  static auto* const real = next<int(const char*, const char*)>("rename");
  trace("rename", to);
  const bool fails = in_folder(to) && is_turn("rename");
  return fails ? fail_with(fault_error()) : real(from, to);
}

int unlinkat(int folder, const char* path, int flags) {
  static auto* const real = next<int(int, const char*, int)>("unlinkat");
  const bool fails = in_folder(folder) && is_turn("unlink");
  return fails ? fail_with(fault_error()) : real(folder, path, flags);
}

int fstat(int descriptor, struct stat* status) {
  static auto* const real = next<int(int, struct stat*)>("fstat");
  const bool fails = in_folder(descriptor) && is_turn("fstat");
  return fails ? fail_with(fault_error()) : real(descriptor, status);
}

// Programs end in this way after an error. No destructor runs then.
void _exit(int code) {
  static auto* const real = next<void(int)>("_exit");
  write_count();
  real(code);
  std::abort();
}

dirent* readdir(DIR* folder) {
  static auto* const real = next<dirent*(DIR*)>("readdir");
  if (!in_folder(::dirfd(folder)) || !is_turn("readdir")) return real(folder);
  errno = fault_error();
  return nullptr;
}

}  // extern "C"
