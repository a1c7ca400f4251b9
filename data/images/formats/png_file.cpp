#include "data/images/formats/png_file.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <png.h>

#include "core/error.h"
#include "data/images/formats/image_file.h"

namespace tessera::data {
namespace {

struct Reader {
  png_structp png;
  png_infop info;
  const uint8_t* file;
  size_t bytes;
  size_t read;
  char message[256];
};

[[noreturn]] void on_error(png_structp png, png_const_charp text) {
  auto* reader = static_cast<Reader*>(png_get_error_ptr(png));
  std::snprintf(reader->message, sizeof(reader->message), "%s", text != nullptr ? text : "");
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}  // ignored: libpng decodes the image all the same

void read_bytes(png_structp png, png_bytep out, size_t count) {
  auto* reader = static_cast<Reader*>(png_get_io_ptr(png));
  if (count > reader->bytes - reader->read) png_error(png, "the file ends too early");
  std::memcpy(out, reader->file + reader->read, count);
  reader->read += count;
}

// begin() and read_rows() return false if libpng reports an error. The error's text is then in
// reader.message. The message stays empty if libpng gives no text, as when it cannot allocate its
// structures.
bool begin(Reader& reader) {
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, on_error, on_warning);
  reader.info = png_create_info_struct(reader.png);  // null if reader.png is null
  if (reader.info == nullptr) return false;
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_read_fn(reader.png, &reader, read_bytes);
  // Texts, profiles and other extra chunks are skipped, not decompressed. libpng's own limits on
  // width and height are lifted, because check_image_size limits the number of pixels.
  png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_set_user_limits(reader.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_read_info(reader.png, reader.info);
  png_set_expand(reader.png);  // turns palettes into RGB, and depths below 8 bits into 8 bits
  png_set_scale_16(reader.png);
  png_set_gray_to_rgb(reader.png);
  png_set_strip_alpha(reader.png);
  return true;
}

bool read_rows(Reader& reader, uint8_t** rows, size_t row_bytes) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  if (png_get_rowbytes(reader.png, reader.info) != row_bytes) png_error(reader.png, "is not RGB");
  png_read_image(reader.png, rows);
  png_read_end(reader.png, nullptr);
  return true;
}

}  // namespace

ImageView decode_png(const std::string& name, std::span<const uint8_t> file,
                     std::vector<uint8_t>& pixels) {
  struct Owned : Reader {
    explicit Owned(std::span<const uint8_t> from) : Reader{} {
      file = from.data();
      bytes = from.size();
    }
    ~Owned() { png_destroy_read_struct(&png, &info, nullptr); }
  } reader(file);
  const auto check = [&](bool good) {
    if (good) return;
    if (reader.message[0] == '\0') {
      fail("{}: PNG: libpng gives no reason; it may lack memory, or not be version {}", name,
           PNG_LIBPNG_VER_STRING);
    }
    fail_input("{}: PNG: {}", name, reader.message);
  };
  check(begin(reader));
  const auto width = int64_t{png_get_image_width(reader.png, reader.info)};
  const auto height = int64_t{png_get_image_height(reader.png, reader.info)};
  check_image_size(name, width, height);
  pixels.resize(static_cast<size_t>(height * width * 3));
  std::vector<uint8_t*> rows(static_cast<size_t>(height));
  for (int64_t y = 0; y < height; ++y) {
    rows[static_cast<size_t>(y)] = pixels.data() + y * width * 3;
  }
  check(read_rows(reader, rows.data(), static_cast<size_t>(width) * 3));
  return {{height, width, 3}, pixels.data()};
}

}  // namespace tessera::data
