#include "weft/kernel/conv/phases.h"

#include "weft/core/ceil_div.h"

namespace weft {
namespace {

int64_t inputs_of_phase(int64_t size, int64_t phase, int64_t stride) {
  return phase < size ? ceil_div(size - phase, stride) : 0;
}

}  // namespace

std::vector<ConvPhase> backward_phases(const ConvShape& s) {
  std::vector<ConvPhase> phases;
  for (int64_t y = 0; y < s.stride_h; ++y) {
    for (int64_t x = 0; x < s.stride_w; ++x) {
      ConvPhase phase{
          y,  x, inputs_of_phase(s.height, y, s.stride_h), inputs_of_phase(s.width, x, s.stride_w),
          {}, {}};
      for (int64_t tap = 0; tap < s.taps(); ++tap) {
        const int64_t dy = y + s.pad_h - tap / s.kernel_w * s.dilation_h;
        const int64_t dx = x + s.pad_w - tap % s.kernel_w * s.dilation_w;
        if (dy % s.stride_h != 0 || dx % s.stride_w != 0) continue;
        phase.taps.push_back(tap);
        phase.offsets.push_back({dy / s.stride_h, dx / s.stride_w});
      }
      phases.push_back(std::move(phase));
    }
  }
  return phases;
}

}  // namespace weft
