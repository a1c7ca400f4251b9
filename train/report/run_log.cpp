#include "train/report/run_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "core/context.h"
#include "core/cpu/onednn_version.h"
#include "core/cuda.h"
#include "core/error.h"
#include "core/text/input_file.h"
#include "core/text/output_file.h"
#include "core/text/step_number.h"
#include "dist/device_choice.h"
#include "train/report/log_reader.h"

namespace tessera::train {
namespace {

double rounded(double value) { return std::round(value * 1000) / 1000; }

}  // namespace

RunLog::RunLog(const std::string& path, std::optional<int64_t> finished) : path_(path) {
  if (path.empty()) return;
  fail_beyond_file_size_limit();
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) fail_input("{}: cannot be written: it is a folder", path);
  // Pipes are refused. POSIX leaves open() with O_RDWR on a pipe undefined. On Linux, a write would
  // block as soon as the pipe is full and nobody reads.
  if (exists && !S_ISREG(status.st_mode) && !S_ISCHR(status.st_mode)) {
    fail_input(
        "{}: cannot be written: it already exists and is neither a regular file nor a terminal; "
        "a file can be followed with tail -f",
        path);
  }
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    const int error = errno;
    fail_to_open(error, fmt::format("{}: cannot be written: {}", path, why_not_made(path, error)));
  }
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) return;
  try {
    // The system releases the lock when this process ends, even if it is killed. On file systems
    // without locks, the log is written without a lock.
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      fail_input("{}: another run that still goes on writes its log there", path);
    }
    if (finished) find_kept_lines(*finished);
    must_cut_ = true;
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

// Sets `bytes_` to the size of the lines to keep. These are the lines before the first line that is
// a summary, or whose step is above `finished` or not an integer. Later lines are not read. Invalid
// lines at the end of the log are not kept, because a crash may leave them. Throws if a valid line
// follows an invalid line.
void RunLog::find_kept_lines(int64_t finished) {
  std::ifstream file(path_, std::ios::binary);
  if (!file) fail_with_reason(errno, path_ + ": cannot be read");
  int64_t number = 0;
  int64_t invalid = 0;
  int64_t last_step = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    ++number;
    const nlohmann::ordered_json json = parse_log_line(line);
    if (json.is_object() && invalid != 0) {
      fail_input("{}: line {} is damaged, and later lines are not; name another log", path_,
                 invalid);
    }
    if (!json.is_object()) {
      if (invalid == 0) invalid = number;
      continue;
    }
    const auto type = json.find("type");
    if (type != json.end() && *type == "summary") break;
    const auto step = json.find("step");
    if (step != json.end()) {
      if (!step->is_number_integer() || step->get<int64_t>() > finished) break;
      // A line may have a lower step than the line before it, because an asynchronous checkpoint
      // is logged after later steps.
      last_step = std::max(last_step, step->get<int64_t>());
    }
    bytes_ += std::ssize(line) + 1;
  }
  if (file.bad()) fail("{}: reading failed: {}", path_, std::strerror(errno));
  if (bytes_ > 0 && last_step < finished) {
    spdlog::warn("{} ends with step {}, and the run goes on after step {}: the log has a gap",
                 path_, last_step, finished);
  }
}

void RunLog::cut() {
  if (::ftruncate(descriptor_, bytes_) != 0 || ::lseek(descriptor_, bytes_, SEEK_SET) != bytes_) {
    fail_with_reason(errno, path_ + ": cannot be written");
  }
  must_cut_ = false;
}

RunLog::~RunLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void RunLog::write(const JsonObject& line) {
  if (descriptor_ < 0 && followers_.empty()) return;
  std::string text = line.text();
  for (const auto& follower : followers_) follower(text);
  if (descriptor_ < 0) return;
  if (must_cut_) cut();
  text += '\n';
  if (bytes_ == 0) text.insert(0, unwritten_header_);
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(descriptor_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      if (bytes_ == 0 && unwritten_header_.empty()) unwritten_header_ = text;
      return lose_line(error);
    }
    done += static_cast<size_t>(written);
  }
  bytes_ += std::ssize(text);
}

// Removes the part of the line that was written, because the next line would be appended to this
// part and would then be invalid. A terminal or another character device cannot be truncated, so
// the part remains there. Warns only once.
void RunLog::lose_line(int error) {
  if (::ftruncate(descriptor_, bytes_) == 0) ::lseek(descriptor_, bytes_, SEEK_SET);
  if (std::exchange(warned_, true)) return;
  spdlog::warn(
      "{}: writing failed: {}; training goes on, and lines are missing from the log until "
      "they can be written",
      path_, std::strerror(error));
}

JsonObject header_begin(const std::string& program) {
  return JsonObject().add("type", "header").add("program", program).add("version", version());
}

void add_job(JsonObject& header, const dist::World& world) {
  const Device device = world.communicator->device();
  header.add("ranks", world.size)
      .add("threads", thread_count())
      .add("device", dist::device_type_name(device));
  if (device.is_cpu()) {
    header.add("instructions", cpu::onednn::library().instructions);
  } else {
    header.add("device_name", cuda::device_name(device.index));
  }
  header.add("communicator", world.communicator->name());
}

JsonObject step_line(const StepLine& step, const std::string& unit) {
  JsonObject line;
  line.add("type", "step")
      .add("step", step_number(step.step))
      .add("loss", step.loss)
      .add("grad_norm", step.grad_norm)
      .add("lr", step.lr);
  if (step.loss_scale) line.add("loss_scale", *step.loss_scale);
  if (step.skipped) line.add("skipped", true);
  line.add(unit + "_per_s", rounded(step.samples_per_s))
      .add("step_ms", rounded(step.step_ms))
      .add("comm_exposed_ms", rounded(step.comm_exposed_ms));
  if (step.checkpoint_wait_ms > 0) {
    line.add("checkpoint_wait_ms", rounded(step.checkpoint_wait_ms));
  }
  return line;
}

JsonObject norms_line(int64_t step, const std::map<std::string, float>& norms) {
  JsonObject values;
  for (const auto& [name, norm] : norms) values.add(name, norm);
  return JsonObject().add("type", "norms").add("step", step_number(step)).add("norms", values);
}

JsonObject eval_line(int64_t step, float val_loss) {
  return JsonObject().add("type", "eval").add("step", step).add("val_loss", val_loss);
}

}  // namespace tessera::train
