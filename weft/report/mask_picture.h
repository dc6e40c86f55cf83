// Pictures of the masks in a model file: a pixel per weight, set where it is not zero.
//
// Of a large weight an even sample is drawn, in whole blocks of outputs and of inputs, so that the
// pattern can be seen and a picture never has more than kMostPixels each way:
//
//   outputs   blocks of group * share rows: tiles of transposable masks stay whole, and rows that share
//   inputs    groups, at one tap of a convolution after the other
//
// Only the rows that are drawn are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "weft/core/pattern.h"
#include "weft/report/png.h"

namespace weft {

struct MaskPicture {
  static constexpr int kMostPixels = 96;

  std::string tensor;
  Pattern pattern;
  std::string axis;  // "in", "both"
  int64_t outs = 0, ins = 0, taps = 1;
  Bitmap bitmap;

  double density() const;  // of what is drawn
  bool is_whole() const { return bitmap.height == outs && bitmap.width == ins * taps; }
};

// Of the tensors that the file promises a pattern for (weft.sparsity), by their names.
std::vector<MaskPicture> mask_pictures(const std::filesystem::path& model);

// The numbers from 0 to size - 1 that are drawn: all, or whole blocks spread evenly, at most `most`.
std::vector<int64_t> even_sample(int64_t size, int64_t block, int64_t most);

}  // namespace weft
