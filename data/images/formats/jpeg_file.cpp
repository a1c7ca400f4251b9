#include "data/images/formats/jpeg_file.h"

#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>
#include <jerror.h>

#include "core/error.h"
#include "data/images/formats/image_file.h"

namespace tessera::data {
namespace {

// The most scans that a progressive image may have. Each scan costs decoding time, and ordinary
// files have far fewer scans.
constexpr int scan_limit = 500;

struct Reader {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_progress_mgr progress;
  std::jmp_buf failed;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void jump_out(j_common_ptr info) {
  auto* reader = static_cast<Reader*>(info->client_data);
  info->err->format_message(info, reader->message);
  std::longjmp(reader->failed, 1);
}

// Warnings (level -1) are errors here, because libjpeg invents pixels after a warning. Two warnings
// are common and harmless, and are ignored: extra bytes between the parts of a file, and a JFIF
// version that libjpeg does not know.
void on_message(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_JFIF_MAJOR) jump_out(info);
}

void on_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= scan_limit) return;
  auto* reader = static_cast<Reader*>(info->client_data);
  std::snprintf(reader->message, sizeof(reader->message), "more than %d scans", scan_limit);
  std::longjmp(reader->failed, 1);
}

// begin() and read_rows() return false after an error, a warning that is not ignored, or too many
// scans. The reason is then in reader.message.
bool begin(Reader& reader, const uint8_t* file, unsigned long bytes) {
  jpeg_decompress_struct& info = reader.info;
  info.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = jump_out;
  reader.errors.emit_message = on_message;
  reader.progress.progress_monitor = on_progress;
  info.client_data = &reader;
  if (setjmp(reader.failed) != 0) return false;
  jpeg_create_decompress(&info);
  info.progress = &reader.progress;
  jpeg_mem_src(&info, file, bytes);
  jpeg_read_header(&info, TRUE);
  const bool four = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = four ? JCS_CMYK : JCS_RGB;
  return true;
}

bool read_rows(Reader& reader, uint8_t* pixels, size_t row_bytes) {
  jpeg_decompress_struct& info = reader.info;
  if (setjmp(reader.failed) != 0) return false;
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels + info.output_scanline * row_bytes;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
  return true;
}

// Converts CMYK pixels to RGB in place. `inverted` is true for files with Adobe's marker, because
// Adobe's programs store the inks inverted.
void rgb_from_cmyk(std::vector<uint8_t>& pixels, bool inverted) {
  const size_t count = pixels.size() / 4;
  const int flip = inverted ? 0 : 255;
  for (size_t i = 0; i < count; ++i) {
    const int light = pixels[4 * i + 3] ^ flip;
    for (size_t c = 0; c < 3; ++c) {
      pixels[3 * i + c] = static_cast<uint8_t>(((pixels[4 * i + c] ^ flip) * light + 127) / 255);
    }
  }
  pixels.resize(count * 3);
}

}  // namespace

ImageView decode_jpeg(const std::string& name, std::span<const uint8_t> file,
                      std::vector<uint8_t>& pixels) {
  struct Owned : Reader {
    Owned() : Reader{} {}
    ~Owned() { jpeg_destroy_decompress(&info); }
  } reader;
  const auto check = [&](bool good) {
    if (!good) fail_input("{}: JPEG: {}", name, reader.message);
  };
  check(begin(reader, file.data(), static_cast<unsigned long>(file.size())));
  const auto width = static_cast<int64_t>(reader.info.image_width);
  const auto height = static_cast<int64_t>(reader.info.image_height);
  check_image_size(name, width, height);
  const bool four = reader.info.out_color_space == JCS_CMYK;
  const int64_t row_bytes = width * (four ? 4 : 3);
  pixels.resize(static_cast<size_t>(height * row_bytes));
  check(read_rows(reader, pixels.data(), static_cast<size_t>(row_bytes)));
  if (four) rgb_from_cmyk(pixels, reader.info.saw_Adobe_marker == TRUE);
  return {{height, width, 3}, pixels.data()};
}

}  // namespace tessera::data
