#include "weft/report/png.h"

#include <zlib.h>

#include "weft/core/error.h"

namespace weft {
namespace {

void append_big_endian(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

// length, type, contents, and the CRC-32 of type and contents
void append_chunk(std::string& out, const char* type, const std::string& contents) {
  append_big_endian(out, static_cast<uint32_t>(contents.size()));
  const std::string summed = type + contents;
  out += summed;
  append_big_endian(out,
                    static_cast<uint32_t>(::crc32(0, reinterpret_cast<const Bytef*>(summed.data()),
                                                  static_cast<uInt>(summed.size()))));
}

std::string deflated(const std::string& text) {
  uLongf bytes = ::compressBound(text.size());
  std::string out(bytes, '\0');
  const int problem = ::compress2(reinterpret_cast<Bytef*>(out.data()), &bytes,
                                  reinterpret_cast<const Bytef*>(text.data()), text.size(), 9);
  WEFT_CHECK(problem == Z_OK, "zlib cannot compress a picture: error {}", problem);
  out.resize(bytes);
  return out;
}

}  // namespace

std::string png_of(const Bitmap& bitmap, uint32_t colour) {
  WEFT_CHECK(bitmap.width >= 1 && bitmap.height >= 1 && bitmap.width <= 4096 &&
                 bitmap.height <= 4096 &&
                 bitmap.bits.size() == static_cast<size_t>(bitmap.width) * bitmap.height,
             "a picture of {} x {} with {} pixels: accepted is 1 to 4096 each way", bitmap.width,
             bitmap.height, bitmap.bits.size());
  std::string header;
  append_big_endian(header, static_cast<uint32_t>(bitmap.width));
  append_big_endian(header, static_cast<uint32_t>(bitmap.height));
  header +=
      {1, 3, 0, 0, 0};  // a bit per pixel, of a palette; deflate, no filters of note, in order
  std::string palette(3, '\0');
  for (int shift = 16; shift >= 0; shift -= 8) palette += static_cast<char>(colour >> shift & 0xff);
  std::string rows;
  for (int y = 0; y < bitmap.height; ++y) {
    rows += '\0';  // no filter
    for (int x = 0; x < bitmap.width; ++x) {
      if (x % 8 == 0) rows += '\0';
      if (bitmap.bits[static_cast<size_t>(y) * bitmap.width + x]) {
        rows.back() = static_cast<char>(rows.back() | 0x80 >> x % 8);
      }
    }
  }
  std::string png("\x89PNG\r\n\x1a\n", 8);
  append_chunk(png, "IHDR", header);
  append_chunk(png, "PLTE", palette);
  append_chunk(png, "tRNS", std::string(1, '\0'));  // colour 0 is transparent
  append_chunk(png, "IDAT", deflated(rows));
  append_chunk(png, "IEND", "");
  return png;
}

std::string data_uri(const std::string& png) {
  constexpr const char* kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out = "data:image/png;base64,";
  for (size_t i = 0; i < png.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < png.size() ? static_cast<unsigned char>(png[i + k]) : 0u);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += i + k <= png.size() ? kLetters[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

}  // namespace weft
