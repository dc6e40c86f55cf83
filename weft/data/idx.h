// The files of MNIST and its family: big-endian words, then bytes.
//
//   {train,t10k}-images-idx3-ubyte   0x00000803, count, height, width, pixels [count, height,
//   width] {train,t10k}-labels-idx1-ubyte   0x00000801, count, labels [count]
//
// each plain, or gzip with .gz after the name; plain is taken if both are there. Counts must be
// those of the file to the byte. There are as many classes as the highest training label says; each
// must have a training image, but 0 need not: the letters of EMNIST count from 1.
#pragma once

#include <filesystem>

#include "weft/data/image_set.h"

namespace weft {

ImageData read_idx(const std::filesystem::path& folder);

}  // namespace weft
