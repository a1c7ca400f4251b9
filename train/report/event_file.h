// TensorBoard's event files: records of TensorFlow's TFRecord format, each a protocol buffer
// `Event`. An event with values holds them in a `Summary`. Both formats, TFRecord and protocol
// buffers, are small and fixed, so EventFile writes them without the formats' libraries. Sources:
// tensorflow/core/lib/io/record_writer.h, and event.proto and summary.proto in
// tensorboard/compat/proto.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera::train {

/// Returns the CRC-32C (Castagnoli, RFC 3720) of some bytes.
uint32_t crc32c(std::string_view bytes);

/// Makes the folder of event files if it is missing. Throws InputError if it cannot be made, or
/// Error if the reason is the machine (fail_to_open).
void make_event_folder(const std::string& folder);

class EventFile {
 public:
  /// Creates a new file in `folder`, and the folder if necessary. The name begins with
  /// "events.out.tfevents.", as TensorBoard expects. If other files in the folder have values of
  /// `first_step` or later steps, the new file makes TensorBoard drop those values. For `time`, see
  /// set_time. Throws InputError if the file cannot be created, or Error if the reason is the
  /// machine (fail_to_open).
  EventFile(const std::string& folder, int64_t first_step, std::optional<double> time = {});
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  const std::string& path() const { return path_; }

  /// Sets the time of the records that follow, in seconds since 1970. Without a time, the time of a
  /// record is when it is written.
  void set_time(double time) { time_ = time; }

  /// True if a write has failed. The failed record and all later records are then missing.
  bool failed() const { return descriptor_ < 0; }

  // Each of these functions writes one record immediately, so that TensorBoard can follow a run.
  // The first failed write prints a warning, and later records are not written.
  void scalar(std::string_view tag, int64_t step, double value);
  /// Writes a histogram of the finite values. Writes no record if no value is finite.
  void histogram(std::string_view tag, int64_t step, std::span<const double> values);
  /// Writes Markdown text.
  void text(std::string_view tag, int64_t step, std::string_view markdown);

 private:
  void write_value(int64_t step, const std::string& value);
  void write_event(std::string event);

  std::string path_;
  std::optional<double> time_;
  int descriptor_ = -1;
};

}  // namespace tessera::train
