// Gives damaged files to every reader. The reader must read the files to the last value, or refuse
// them with a tessera::Error that says where the fault is (Reader::says_where). These are failures:
// another exception, a crash, more memory than Reader::most_bytes, or no end within 10 s.
//
//   hostile_readers --seed 1 --cases 10000                 every reader, a process for each
//   hostile_readers --seed 1 --reader idx --case 17        one case, its damage and the result
//
// The files of each reader's case 0 are undamaged and must be read.
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <new>
#include <optional>

#include "core/error.h"
#include "tests/hostile/readers.h"
#include "tests/support/image_files.h"
#include "tests/support/temporary_folder.h"

namespace tessera::hostile {
namespace {

constexpr unsigned limit_s = 10;

struct Options {
  uint64_t seed = 1;
  int64_t cases = 300;
  std::string reader = {};
  std::optional<int64_t> only = {};
};

enum class Outcome { none, read, refused, failed };

/// Shared memory in which a reader's process reports its progress to the parent process.
struct Progress {
  int64_t number = 0;  // the case that is being read, or the next one
  int64_t outcomes[4] = {};
};

struct Case {
  FileContents files;
  std::string what = "undamaged";
};

Case make_case(const Options& options, const Reader& reader, int64_t number) {
  Random random(options.seed, reader.name, number);
  Case result{.files = reader.variants[random.below(reader.variants.size())]};
  if (number > 0) {
    result.what = mutate(result.files, random);
  } else {
    // In a reader's variants, files of form gzip are not compressed yet. mutate() compresses the
    // files of damaged cases.
    for (HostileFile& file : result.files) {
      if (file.form == Form::gzip) file.bytes = test::gzipped(file.bytes);
    }
  }
  return result;
}

bool says_where(const Reader& reader, const std::string& text, const std::string& folder,
                const FileContents& files) {
  if (reader.says_where) return reader.says_where(text, files);
  return text.find(folder) != std::string::npos;
}

// Reads a case's files. Sets `text` to the message of an exception, if there is one. If the
// exception is not allowed, the text also says why.
Outcome read_case(const Reader& reader, const Case& hostile, const std::string& folder,
                  std::string& text) {
  write_files(folder, hostile.files);
  ::alarm(limit_s);
  Outcome outcome = Outcome::failed;
  try {
    reader.read(folder);
    outcome = Outcome::read;
  } catch (const Error& error) {
    text = error.what();
    if (says_where(reader, text, folder, hostile.files)) {
      outcome = Outcome::refused;
    } else {
      text = "the refusal does not say which file: " + text;
    }
  } catch (const std::exception& error) {
    text = fmt::format("an exception that is no tessera::Error: {}", error.what());
  }
  ::alarm(0);
  return outcome;
}

void print_failure(const Options& options, const Reader& reader, int64_t number,
                   const std::string& text) {
  const Case hostile = make_case(options, reader, number);
  fmt::print("FAILED {} case {}: {}\n  {}\n  hostile_readers --seed {} --reader {} --case {}\n",
             reader.name, number, text.substr(0, 400), hostile.what.substr(0, 400), options.seed,
             reader.name, number);
  std::fflush(stdout);
}

[[maybe_unused]] int64_t address_space_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

// Limits the address space of the process to `bytes` more than its current size, and turns core
// dumps off. Sanitizers reserve terabytes of addresses and have their own limits (ASAN_OPTIONS). So
// builds with sanitizers get no limit of the address space.
void limit_memory([[maybe_unused]] int64_t bytes) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const auto most = static_cast<rlim_t>(address_space_bytes() + bytes);
  const rlimit limit{most, most};
  ::setrlimit(RLIMIT_AS, &limit);
#endif
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
}

// Runs in the reader's process: reads all cases from progress.number on.
void read_cases(const Options& options, const Reader& reader, const std::string& folder,
                Progress& progress) {
  limit_memory(reader.most_bytes);
  const int64_t end = options.only ? *options.only + 1 : options.cases;
  for (; progress.number < end; ++progress.number) {
    const int64_t number = progress.number;
    const Case hostile = make_case(options, reader, number);
    if (options.only) fmt::print("{}\n", hostile.what);
    std::string text;
    Outcome outcome = read_case(reader, hostile, folder, text);
    if (number == 0 && outcome != Outcome::read) {
      outcome = Outcome::failed;
      text = "undamaged files are not read: " + text;
    }
    ++progress.outcomes[static_cast<size_t>(outcome)];
    if (outcome == Outcome::failed) print_failure(options, reader, number, text);
    if (options.only) {
      fmt::print("{}\n", outcome == Outcome::read ? "it is read" : "it says: " + text);
    }
  }
  std::fflush(stdout);
}

// Describes how a reader's process ended, if it did not finish all its cases.
std::string death(int status) {
  if (!WIFSIGNALED(status)) return fmt::format("the process ended with {}", WEXITSTATUS(status));
  const int number = WTERMSIG(status);
  if (number == SIGALRM) return fmt::format("no end within {} s", limit_s);
  return fmt::format("the process ended with {}", ::strsignal(number));
}

// Reads all cases in a child process. If the child dies, a new child continues after the case that
// the dead child was reading.
Progress run_reader(const Options& options, const Reader& reader) {
  const test::TemporaryFolder folder;
  void* const shared =
      ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TESSERA_CHECK(shared != MAP_FAILED, "mmap failed");
  auto* const progress = new (shared) Progress{.number = options.only.value_or(0)};
  while (true) {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    TESSERA_CHECK(child >= 0, "fork failed");
    if (child == 0) {
      read_cases(options, reader, folder.path("files"), *progress);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (status == 0) break;
    ++progress->outcomes[static_cast<size_t>(Outcome::failed)];
    print_failure(options, reader, progress->number, death(status));
    ++progress->number;
  }
  const Progress result = *progress;
  ::munmap(shared, sizeof(Progress));
  return result;
}

template <class T>
T number_of(const std::string& flag, const std::string& text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    fail_input("{} is '{}', expected a whole number from 0 on", flag, text);
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (i + 1 == argc) fail_input("{} has no value", flag);
    const std::string value = argv[i + 1];
    if (flag == "--seed") {
      options.seed = number_of<uint64_t>(flag, value);
    } else if (flag == "--cases") {
      options.cases = number_of<uint32_t>(flag, value);
    } else if (flag == "--case") {
      options.only = number_of<uint32_t>(flag, value);
    } else if (flag == "--reader") {
      options.reader = value;
    } else {
      fail_input("{} is unknown, expected --seed S, --cases N, --reader NAME or --case K", flag);
    }
  }
  return options;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  std::vector<Reader> readers = weight_readers();
  for (auto& more : {data_readers(), rating_readers(), option_readers()}) {
    readers.insert(readers.end(), more.begin(), more.end());
  }
  int64_t failed = 0;
  int64_t run = 0;
  std::string table = fmt::format("{:19} {:>8} {:>8} {:>8} {:>8}\n", "reader", "cases", "read",
                                  "refused", "failed");
  for (const Reader& reader : readers) {
    if (!options.reader.empty() && reader.name != options.reader) continue;
    const auto [number, outcomes] = run_reader(options, reader);
    const auto [none, read, refused, bad] = outcomes;
    const int64_t cases = read + refused + bad;
    table += fmt::format("{:19} {:8} {:8} {:8} {:8}\n", reader.name, cases, read, refused, bad);
    failed += bad;
    ++run;
    // If there are 200 cases or more, at least two must be read and at least two refused. If fewer
    // are refused, the damage has hardly any effect. If fewer are read, the damage is so large that
    // the reader hardly ever gets to the last value.
    if (cases < 200 || (read >= 2 && refused >= 2)) continue;
    ++failed;
    fmt::print("FAILED {}: of {} cases {} are read, expected some of each\n", reader.name, cases,
               read);
  }
  if (run == 0) fail_input("there is no reader '{}'", options.reader);
  fmt::print("{}seed {}: {} failures\n", table, options.seed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tessera::hostile

int main(int argc, char** argv) {
  try {
    return tessera::hostile::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
