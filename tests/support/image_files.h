// Makes image files in memory, valid or damaged.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <jpeglib.h>
#include <zlib.h>

#include "core/error.h"

namespace tessera::test {

/// Returns the four bytes of a number, big-endian as in PNG files and in MNIST's IDX files.
inline std::string word(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

inline std::string gzipped(const std::string& bytes) {
  std::string out(bytes.size() + 1024, '\0');
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  TESSERA_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END, "gzip: not all was compressed");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::string png_chunk(const std::string& type, const std::string& data) {
  const std::string checked = type + data;
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(checked.data()),
                          static_cast<uInt>(checked.size()));
  return word(static_cast<uint32_t>(data.size())) + checked + word(static_cast<uint32_t>(crc));
}

struct PngHeader {
  uint32_t width = 1;
  uint32_t height = 1;
  int depth = 8;   // bits per value
  int color = 2;   // 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGB and alpha
  int interlaced = 0;
};

/// Returns a PNG file. `rows` contains each row's filter byte (0) and values. `extra` contains
/// chunks that are written before the pixels.
inline std::string png(const PngHeader& header, const std::string& rows,
                       const std::string& extra = "") {
  const std::string settings = {static_cast<char>(header.depth), static_cast<char>(header.color),
                                0, 0, static_cast<char>(header.interlaced)};
  uLongf size = compressBound(static_cast<uLong>(rows.size()));
  std::string packed(size, '\0');
  compress(reinterpret_cast<Bytef*>(packed.data()), &size,
           reinterpret_cast<const Bytef*>(rows.data()), static_cast<uLong>(rows.size()));
  packed.resize(size);
  return "\x89PNG\r\n\x1a\n" +
         png_chunk("IHDR", word(header.width) + word(header.height) + settings) + extra +
         png_chunk("IDAT", packed) + png_chunk("IEND", "");
}

/// Returns a PNG file in which every pixel has the RGB value `color` (3 bytes).
inline std::string png_of(uint32_t width, uint32_t height, const std::string& color) {
  std::string row(1, '\0');
  for (uint32_t x = 0; x < width; ++x) row += color;
  std::string rows;
  for (uint32_t y = 0; y < height; ++y) rows += row;
  return png({.width = width, .height = height}, rows);
}

struct JpegOptions {
  J_COLOR_SPACE space = JCS_RGB;
  int channels = 3;
  /// If true, the file has two scans: the DC coefficients, then the AC coefficients. Needs one
  /// channel.
  bool progressive = false;
};

/// Returns a JPEG file of pixels u8 (H, W, C).
inline std::string jpeg(int width, int height, const std::vector<uint8_t>& pixels,
                        const JpegOptions& options = {}) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* out = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&info, &out, &bytes);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = options.channels;
  info.in_color_space = options.space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  const jpeg_scan_info scans[] = {{1, {0}, 0, 0, 0, 0}, {1, {0}, 1, 63, 0, 0}};
  if (options.progressive) {
    info.scan_info = scans;
    info.num_scans = 2;
  }
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < height; ++y) {
    auto* row = const_cast<uint8_t*>(pixels.data()) + y * width * options.channels;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  const std::string result(reinterpret_cast<char*>(out), bytes);
  jpeg_destroy_compress(&info);
  std::free(out);
  return result;
}

}  // namespace tessera::test
