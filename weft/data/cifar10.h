// The binary version of CIFAR-10: data_batch_1.bin ... data_batch_5.bin and test_batch.bin, each
// 10000 records of a label and a 3x32x32 image, red, green and blue planes one after the other:
//
//   | label | red 32x32 | green 32x32 | blue 32x32 |     1 + 3072 bytes
#pragma once

#include <cstdint>
#include <filesystem>

#include "weft/data/image_set.h"

namespace weft {

constexpr int64_t kCifar10Records = 10000;

// Files with other than `records` records are refused.
ImageData read_cifar10(const std::filesystem::path& folder, int64_t records = kCifar10Records);

}  // namespace weft
