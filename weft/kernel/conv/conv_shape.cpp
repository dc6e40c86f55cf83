#include "weft/kernel/conv/conv_shape.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

bool overflows(std::initializer_list<int64_t> sizes) {
  int64_t product = 4;  // bytes of a float
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) return true;
  }
  return false;
}

// "3" or "3x3x3": as many numbers as there are places for them; false for anything else.
bool read_sizes(std::string_view text, std::initializer_list<int64_t*> sizes) {
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (int64_t* size : sizes) {
    if (size != *sizes.begin() && (at == end || *at++ != 'x')) return false;
    if (at == end || *at < '0' || *at > '9') return false;
    const auto [next, error] = std::from_chars(at, end, *size);
    if (error != std::errc()) return false;
    at = next;
  }
  return at == end;
}

bool read_pair(std::string_view text, int64_t& h, int64_t& w) {
  if (read_sizes(text, {&h, &w})) return true;
  const bool one = read_sizes(text, {&h});
  w = h;
  return one;
}

// One of the settings after the sizes, "stride=2x1".
bool read_setting(std::string_view text, ConvShape& shape) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view name = text.substr(0, equals), value = text.substr(equals + 1);
  if (name == "stride") return read_pair(value, shape.stride_h, shape.stride_w);
  if (name == "pad") return read_pair(value, shape.pad_h, shape.pad_w);
  if (name == "dilation") return read_pair(value, shape.dilation_h, shape.dilation_w);
  return name == "groups" && read_sizes(value, {&shape.groups});
}

// ",stride=2", or nothing for the default.
std::string setting(const char* name, int64_t h, int64_t w, int64_t standard) {
  if (h == standard && w == standard) return "";
  return h == w ? fmt::format(",{}={}", name, h) : fmt::format(",{}={}x{}", name, h, w);
}

}  // namespace

void ConvShape::check() const {
  constexpr int64_t kMost = int64_t{1}
                            << 30;  // of any size: sums and pairs of them do not overflow
  WEFT_CHECK(images >= 0 && images <= kMost, "convolution {}: accepted are 0 to {} images", str(),
             kMost);
  for (const int64_t size : {ins, height, width, outs, kernel_h, kernel_w, stride_h, stride_w,
                             dilation_h, dilation_w, groups}) {
    WEFT_CHECK(size >= 1 && size <= kMost,
               "convolution {}: a size is {}, accepted is 1 to {} (0 only for images and padding)",
               str(), size, kMost);
  }
  WEFT_CHECK(pad_h >= 0 && pad_h <= kMost && pad_w >= 0 && pad_w <= kMost,
             "convolution {}: padding {} x {}, accepted is 0 to {}", str(), pad_h, pad_w, kMost);
  WEFT_CHECK(ins % groups == 0 && outs % groups == 0,
             "convolution {}: {} groups do not divide {} input and {} output channels", str(),
             groups, ins, outs);
  WEFT_CHECK(dilation_h * (kernel_h - 1) < height + 2 * pad_h &&
                 dilation_w * (kernel_w - 1) < width + 2 * pad_w,
             "convolution {}: the kernel spans {} x {} pixels, more than the {} x {} of the padded "
             "image",
             str(), dilation_h * (kernel_h - 1) + 1, dilation_w * (kernel_w - 1) + 1,
             height + 2 * pad_h, width + 2 * pad_w);
  WEFT_CHECK(!overflows({images, ins, height, width}) &&
                 !overflows({images, outs, out_height(), out_width()}) &&
                 !overflows({outs, ins / groups, kernel_h, kernel_w}) &&
                 !overflows({ins, kernel_h, kernel_w, out_height(), out_width()}),
             "convolution {}: the number of elements overflows 64 bits", str());
}

double ConvShape::flops() const {
  return 2 * static_cast<double>(y_size()) *
         static_cast<double>(ins / groups * kernel_h * kernel_w);
}

std::string ConvShape::str() const {
  return fmt::format(
      "{}x{}x{}x{} -> {}, kernel {}x{}, stride {}x{}, padding {}x{}, dilation {}x{}, groups {}",
      images, ins, height, width, outs, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w,
      dilation_h, dilation_w, groups);
}

std::string ConvShape::spec() const {
  return fmt::format(
      "{}x{}x{}x{}:{}x{}x{}{}{}{}{}", images, ins, height, width, outs, kernel_h, kernel_w,
      setting("stride", stride_h, stride_w, 1), setting("pad", pad_h, pad_w, 0),
      setting("dilation", dilation_h, dilation_w, 1), setting("groups", groups, groups, 1));
}

ConvShape ConvShape::parse(std::string_view text) {
  ConvShape shape;
  const size_t colon = text.find(':'), comma = std::min(text.find(','), text.size());
  const bool right =
      colon < comma &&
      read_sizes(text.substr(0, colon), {&shape.images, &shape.ins, &shape.height, &shape.width}) &&
      read_sizes(text.substr(colon + 1, comma - colon - 1),
                 {&shape.outs, &shape.kernel_h, &shape.kernel_w});
  WEFT_CHECK(right,
             "convolution '{}': accepted is IMAGESxINSxHEIGHTxWIDTH:OUTSxKHxKW, as in "
             "8x64x56x56:128x3x3,stride=2,pad=1",
             printable(text));
  for (size_t at = comma; at < text.size();) {
    const size_t end = std::min(text.find(',', at + 1), text.size());
    const std::string_view one = text.substr(at + 1, end - at - 1);
    WEFT_CHECK(read_setting(one, shape),
               "convolution '{}': '{}': accepted are stride=S, pad=P, dilation=D (or one for each "
               "axis, stride=2x1) and groups=G",
               printable(text), printable(one));
    at = end;
  }
  shape.check();
  return shape;
}

}  // namespace weft
