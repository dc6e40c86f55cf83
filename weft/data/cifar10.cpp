#include "weft/data/cifar10.h"

#include <algorithm>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/data/byte_source.h"

namespace weft {
namespace {

constexpr int64_t kSide = 32;
constexpr int64_t kPixels = 3 * kSide * kSide;
constexpr int64_t kRecord = 1 + kPixels;
constexpr int64_t kClasses = 10;

void append_file(const std::filesystem::path& path, int64_t records, ImageSet& set) {
  ByteSource source(path);
  const uint64_t expected = static_cast<uint64_t>(records * kRecord);
  WEFT_CHECK(source.most_bytes() == expected,
             "{}: the file has {} bytes, {} records of CIFAR-10 have {}", source.name(),
             source.most_bytes(), records, expected);
  const std::vector<uint8_t> bytes = source.read(expected, "the images");
  source.expect_end();
  for (int64_t record = 0; record < records; ++record) {
    const uint8_t* from = bytes.data() + record * kRecord;
    WEFT_CHECK(from[0] < kClasses, "{}: record {} has label {}, CIFAR-10 has labels 0 to 9",
               source.name(), record, from[0]);
    set.labels.push_back(from[0]);
    set.pixels.insert(set.pixels.end(), from + 1, from + kRecord);
  }
  set.count += records;
}

ImageSet empty_set() {
  ImageSet set;
  set.channels = 3;
  set.height = set.width = kSide;
  set.classes = kClasses;
  return set;
}

}  // namespace

ImageData read_cifar10(const std::filesystem::path& folder, int64_t records) {
  WEFT_CHECK(records >= 1 && records <= kCifar10Records, "{} records in a file: 1 to {}", records,
             kCifar10Records);
  ImageData data{empty_set(), empty_set(), {}};
  data.train.pixels.reserve(static_cast<size_t>(5 * records * kPixels));
  for (int batch = 1; batch <= 5; ++batch) {
    append_file(folder / fmt::format("data_batch_{}.bin", batch), records, data.train);
  }
  append_file(folder / "test_batch.bin", records, data.test);
  data.normalisation = normalisation_of(data.train);
  return data;
}

}  // namespace weft
