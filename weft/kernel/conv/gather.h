// The activations of a convolution as the dense operand of a product: a row of B for every channel
// and tap, a column for every output position. B is never made as a whole.
//
//   B [channels * taps, images * positions]
//   row channel * taps + tap, column (image, p, q):
//     planes[image, channel, p * stride_h + tap.dy, q * stride_w + tap.dx], or 0 outside of the plane
//
// The taps of a channel are adjacent, as in the weights [outs, channels, taps]: these are packed as
// stored.
//
// Cost: a stripe of B first becomes a program, for every vector of its columns and every tap a few
// loads {source, lanes}; the program then runs for all channels. Padding and image borders are
// lanes that are not loaded, so a row costs no branch, division or call.
#pragma once

#include <vector>

#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/panel/panel_product.h"

namespace weft {

// Where a tap reads, relative to (p * stride_h, q * stride_w).
struct TapOffset {
  int64_t dy = 0;
  int64_t dx = 0;
};

struct Gather {
  const float* planes = nullptr;  // of the first channel: [images, channels, height, width]
  int64_t images = 0;
  int64_t image_step = 0;  // elements from one image to the next: there may be other channels
  int64_t channels = 0;
  int64_t height = 0, width = 0;
  int64_t out_height = 0, out_width = 0;
  int64_t stride_h = 1, stride_w = 1;
  std::vector<TapOffset> taps;

  int64_t positions() const { return out_height * out_width; }
};

// What the taps of the kernel see of x, [images, ins, height, width], for the outputs of a group.
Gather gather_of_inputs(const ConvShape& shape, const float* x, int64_t group);

class GatherSource : public PanelSource {
 public:
  explicit GatherSource(Gather gather);
  std::unique_ptr<BandReader> band(int64_t first_col, int64_t cols) const override;
  int64_t depth_at_once() const override { return 1; }  // one panel, which then is in L1

 private:
  Gather gather_;
};

// One load of a program: lanes [first, last) of a vector, lane i from plane[from + i * stride_w].
// `from` may be outside of the plane where lane 0 is not loaded.
struct GatherLoad {
  int64_t from = 0;
  int32_t first = 0;
  int32_t last = 0;
};

// The loads of one vector of columns and one tap; their lanes do not overlap, other lanes are 0.
struct GatherVector {
  int64_t to = 0;                // column of lane 0 in the stripe
  int32_t first = 0, count = 0;  // of the program's loads
};

// The program of one stripe of B: columns [first_col, first_col + cols).
class StripeProgram {
 public:
  StripeProgram(const Gather& gather, int64_t first_col, int64_t cols);  // gather must outlive it

  // Rows [first_row, first_row + rows) of B; row r to `to + r * stride`. `to` is on a cache line,
  // `stride` a multiple of one; up to the end of a vector, zeros follow the columns.
  void run(int64_t first_row, int64_t rows, float* to, int64_t stride) const;
  // The rows of one tap: of channels [first, first + count), the first to `to`.
  void run_tap(int64_t tap, int64_t first, int64_t count, float* to, int64_t stride) const;
  // Appends where a run reads, a place per line of memory, if a CPU does not foresee it.
  void foresee(int64_t first_row, int64_t rows, std::vector<const float*>& lines) const;

 private:
  struct Run;
  void add_load(const TapOffset& tap, const Run& run);

  const Gather& gather_;
  std::vector<GatherVector> vectors_;  // of the first tap, of the second ...
  int64_t vectors_per_tap_ = 0;
  std::vector<GatherLoad> loads_;
};

struct GatherJob {
  const float* planes = nullptr;  // of the first channel
  int64_t plane_step = 0;
  int64_t channels = 0;
  int64_t stride_w = 1;
  const GatherVector* vectors = nullptr;
  int64_t vector_count = 0;
  const GatherLoad* loads = nullptr;
  float* to = nullptr;  // row of the first channel, on a cache line
  int64_t to_step = 0;  // from the row of one channel to the next
};

int gather_lanes();  // of the vectors of a program, on the instruction set in use
void run_gather(const GatherJob& job);

}  // namespace weft
