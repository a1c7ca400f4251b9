#include "data/files/gzip_file.h"

#include <algorithm>

#include <zlib.h>

#include "core/error.h"

namespace tessera::data {
namespace {

constexpr size_t input_bytes = size_t{1} << 17;
constexpr size_t most_at_once = size_t{1} << 30;  // zlib counts in 32 bits
constexpr int64_t most_compression = 1032;        // deflate's best ratio: 258 bytes from 2 bits
constexpr int gzip_window = 15 + 16;              // window of 2^15 bytes; + 16: a gzip header

std::shared_ptr<z_stream> open_stream(const std::string& path) {
  auto stream = std::make_unique<z_stream>();
  TESSERA_CHECK(::inflateInit2(stream.get(), gzip_window) == Z_OK,
                "{}: zlib cannot decompress it: out of memory", path);
  return {stream.release(), [](z_stream* opened) {
            ::inflateEnd(opened);
            delete opened;
          }};
}

}  // namespace

GzipFile::GzipFile(const std::string& path) : file_(path) {
  if (!has_gzip_magic(file_, 0)) return;
  stream_ = open_stream(path);
  input_.resize(input_bytes);
  in_member_ = true;
}

size_t GzipFile::read(std::span<uint8_t> out) {
  if (stream_ != nullptr) return decompress(out);
  const size_t bytes = std::min(out.size(), static_cast<size_t>(file_.size() - position_));
  file_.read_at(position_, out.data(), bytes);
  position_ += static_cast<int64_t>(bytes);
  return bytes;
}

int64_t GzipFile::most_bytes() const {
  return stream_ == nullptr ? file_.size() : file_.size() * most_compression;
}

size_t GzipFile::decompress(std::span<uint8_t> out) {
  size_t done = 0;
  while (done < out.size() && (in_member_ || next_member())) {
    if (stream_->avail_in == 0 && !refill()) {
      fail_input("{}: cannot be read: its compressed data is cut short", path());
    }
    const auto most = static_cast<uInt>(std::min(out.size() - done, most_at_once));
    stream_->next_out = out.data() + done;
    stream_->avail_out = most;
    const int code = ::inflate(stream_.get(), Z_NO_FLUSH);
    done += most - stream_->avail_out;
    if (code == Z_STREAM_END) {
      in_member_ = false;
    } else if (code != Z_OK) {
      fail_input("{}: cannot be read: its compressed data is damaged: {}", path(),
                 stream_->msg != nullptr ? stream_->msg : ::zError(code));
    }
  }
  return done;
}

/// Starts the file's next gzip member. Returns false if there is none. Like gzip, ignores zeros
/// after the last member, because tapes pad files with zeros. Throws InputError if other bytes
/// follow, because they may be a member whose first bytes are damaged. (gzip itself only warns.)
bool GzipFile::next_member() {
  const int64_t end = position_ - stream_->avail_in;
  if (has_gzip_magic(file_, end)) {
    ::inflateReset(stream_.get());
    in_member_ = true;
    return true;
  }
  while (stream_->avail_in > 0 || refill()) {
    const std::span rest(stream_->next_in, stream_->avail_in);
    if (std::any_of(rest.begin(), rest.end(), [](uint8_t byte) { return byte != 0; })) {
      fail_input("{}: cannot be read: from byte {} on it has no compressed data, expected its end",
                 path(), end);
    }
    stream_->avail_in = 0;
  }
  return false;
}

/// Reads the next compressed bytes. Returns false at the end of the file.
bool GzipFile::refill() {
  const auto bytes = std::min(input_.size(), static_cast<size_t>(file_.size() - position_));
  file_.read_at(position_, input_.data(), bytes);
  position_ += static_cast<int64_t>(bytes);
  stream_->next_in = input_.data();
  stream_->avail_in = static_cast<uInt>(bytes);
  return bytes > 0;
}

}  // namespace tessera::data
