#include "train/report/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "core/text/input_file.h"
#include "core/text/output_file.h"

namespace tessera::train {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}

// TFRecord rotates each checksum and adds a constant. Without this mask, the checksum of data that
// ends with its own checksum would be a constant.
std::string masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  const uint32_t masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  return {reinterpret_cast<const char*>(&masked), sizeof masked};
}

// A message in protocol buffers' wire format. Fields may be added in any order.
class Message {
 public:
  Message& varint(int field, uint64_t value) {
    key(field, 0);
    append_varint(value);
    return *this;
  }
  Message& fixed64(int field, double value) {
    key(field, 1);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Message& fixed32(int field, float value) {
    key(field, 5);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Message& bytes(int field, std::string_view value) {
    key(field, 2);
    append_varint(value.size());
    text_ += value;
    return *this;
  }
  Message& doubles(int field, std::span<const double> values) {
    return bytes(field, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }
  const std::string& text() const { return text_; }

 private:
  void key(int field, int type) {
    append_varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type));
  }
  void append_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
  }
  std::string text_;
};

double seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// Field numbers of Event: 1 wall_time (double), 2 step, 3 file_version, 5 summary, 7 session_log.
Message event_of(int64_t step, std::optional<double> time) {
  Message event;
  event.fixed64(1, time ? *time : seconds_now()).varint(2, static_cast<uint64_t>(step));
  return event;
}

// Field numbers of Summary.Value: 1 tag, 2 simple_value, 5 histo, 8 tensor,
// 9 metadata { 1 plugin_data { 1 name } }.
std::string metadata(std::string_view plugin) {
  return Message().bytes(1, Message().bytes(1, plugin).text()).text();
}

// Field numbers of HistogramProto: 1 min, 2 max, 3 num, 4 sum, 5 sum_squares, 6 bucket_limit,
// 7 bucket.
Message histogram_of(std::span<const double> values) {
  constexpr size_t most = 30;
  const auto [low, high] = std::ranges::minmax(values);
  const size_t buckets = high > low ? most : 1;
  std::vector<double> limits(buckets);
  std::vector<double> counts(buckets, 0.0);
  for (size_t i = 0; i < buckets; ++i) {
    limits[i] = low + (high - low) * static_cast<double>(i + 1) / static_cast<double>(buckets);
  }
  limits.back() = high;
  double sum = 0;
  double squares = 0;
  for (const double value : values) {
    const auto found = std::ranges::lower_bound(limits, value);
    ++counts[static_cast<size_t>(found - limits.begin())];
    sum += value;
    squares += value * value;
  }
  Message message;
  message.fixed64(1, low).fixed64(2, high).fixed64(3, static_cast<double>(values.size()));
  message.fixed64(4, sum).fixed64(5, squares).doubles(6, limits).doubles(7, counts);
  return message;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> table = crc_table();
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc = (crc >> 8) ^ table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  }
  return ~crc;
}

void make_event_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_with_reason(error.value(), folder + ": cannot be made");
}

EventFile::EventFile(const std::string& folder, int64_t first_step, std::optional<double> time)
    : time_(time) {
  fail_beyond_file_size_limit();
  make_event_folder(folder);
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  const auto seconds = static_cast<int64_t>(seconds_now());
  // The names of files that a host creates in the same second differ in the process id or in
  // `number`.
  for (int number = 0; number < 1000 && descriptor_ < 0; ++number) {
    path_ = (std::filesystem::path(folder) / fmt::format("events.out.tfevents.{:010}.{}.{}.{}",
                                                         seconds, host.data(), ::getpid(), number))
                .string();
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) break;
  }
  if (descriptor_ < 0) fail_with_reason(errno, path_ + ": cannot be written");
  write_event(event_of(0, time_).bytes(3, "brain.Event:2").text());
  // Field number of SessionLog: 1 status. The status START (1) makes TensorBoard drop the values of
  // other files from `first_step` on.
  write_event(event_of(first_step, time_).bytes(7, Message().varint(1, 1).text()).text());
}

EventFile::~EventFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void EventFile::scalar(std::string_view tag, int64_t step, double value) {
  write_value(step, Message()
                        .bytes(1, tag)
                        .fixed32(2, static_cast<float>(value))
                        .bytes(9, metadata("scalars"))
                        .text());
}

void EventFile::histogram(std::string_view tag, int64_t step, std::span<const double> values) {
  std::vector<double> finite;
  std::ranges::copy_if(values, std::back_inserter(finite),
                       [](double value) { return std::isfinite(value); });
  if (finite.empty()) return;
  write_value(step, Message()
                        .bytes(1, tag)
                        .bytes(5, histogram_of(finite).text())
                        .bytes(9, metadata("histograms"))
                        .text());
}

void EventFile::text(std::string_view tag, int64_t step, std::string_view markdown) {
  // Field numbers of TensorProto: 1 dtype (7: string), 2 tensor_shape { 2 dim { 1 size } },
  // 8 string_val.
  const std::string shape = Message().bytes(2, Message().varint(1, 1).text()).text();
  const std::string tensor = Message().varint(1, 7).bytes(2, shape).bytes(8, markdown).text();
  write_value(step, Message().bytes(1, tag).bytes(8, tensor).bytes(9, metadata("text")).text());
}

void EventFile::write_value(int64_t step, const std::string& value) {
  write_event(event_of(step, time_).bytes(5, Message().bytes(1, value).text()).text());
}

void EventFile::write_event(std::string event) {
  if (descriptor_ < 0) return;
  const uint64_t length = event.size();
  const std::string head(reinterpret_cast<const char*>(&length), sizeof length);
  const std::string record = head + masked_crc(head) + event + masked_crc(event);
  for (size_t done = 0; done < record.size();) {
    const ssize_t written = ::write(descriptor_, record.data() + done, record.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      // Readers stop at a record that is cut short, so no more records are written.
      spdlog::warn("{}: writing failed: {}; TensorBoard shows no later steps", path_,
                   std::strerror(errno));
      ::close(std::exchange(descriptor_, -1));
      return;
    }
    done += static_cast<size_t>(written);
  }
}

}  // namespace tessera::train
