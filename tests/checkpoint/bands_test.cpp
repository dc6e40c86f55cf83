// Tensors read a band of rows at a time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/checkpoint/tensor_files.h"
#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/checkpoint/checkpoint.h"

namespace weft::test {
namespace {

TEST(Bands, CoverEveryByteOnceInMultiplesOfRows) {
  const ScratchFolder folder;
  const uint64_t row_bytes = 2 * 3 * 5;
  for (const int64_t rows : {0, 1, 3, 4, 5, 8, 9, 17}) {
    const Checkpoint checkpoint = one_tensor(folder / "m.safetensors", Dtype::kBf16, {rows, 3, 5});
    const ShardedTensor& w = find(checkpoint, "w");
    for (const int64_t multiple : {1, 4, 8, 100}) {
      for (const uint64_t target :
           {uint64_t{1}, 4 * row_bytes - 1, 4 * row_bytes, 10 * row_bytes, uint64_t{32} << 20}) {
        SCOPED_TRACE(fmt::format("rows {} multiple {} target {}", rows, multiple, target));
        int64_t reached = 0;
        Bytes seen;
        for_each_band(
            checkpoint, w, multiple,
            [&](const Band& band) {
              EXPECT_EQ(band.first_row, reached);
              EXPECT_EQ(band.offset, seen.size());
              EXPECT_EQ(band.bytes.size(), static_cast<uint64_t>(band.rows) * row_bytes);
              reached += band.rows;
              EXPECT_TRUE(band.rows % multiple == 0 || reached == rows) << band.rows;
              EXPECT_LE(band.bytes.size(),
                        std::max(target, static_cast<uint64_t>(multiple) * row_bytes));
              seen.insert(seen.end(), band.bytes.begin(), band.bytes.end());
            },
            target);
        EXPECT_EQ(reached, rows);
        EXPECT_EQ(seen, read_all(checkpoint, w));
      }
    }
  }
}

TEST(Bands, RefuseTensorsThatHaveNoWholeRows) {
  const ScratchFolder folder;
  const auto refused = [&](Dtype dtype, const std::vector<int64_t>& shape, int64_t multiple) {
    const Checkpoint checkpoint = one_tensor(folder / "m.safetensors", dtype, shape);
    return message_of(
        [&] { for_each_band(checkpoint, find(checkpoint, "w"), multiple, [](const Band&) {}); });
  };
  EXPECT_TRUE(contains(refused(Dtype::kF32, {}, 1), "'w'"));     // a scalar has no rows
  EXPECT_TRUE(contains(refused(Dtype::kF4, {2, 3}, 1), "'w'"));  // rows of a byte and a half
  EXPECT_NE(refused(Dtype::kF32, {2, 3}, 0), "(no Error)");
  EXPECT_EQ(refused(Dtype::kF4, {3, 2}, 1), "(no Error)");
  EXPECT_EQ(refused(Dtype::kF32, {2, 3}, std::numeric_limits<int64_t>::max()), "(no Error)");
}

}  // namespace
}  // namespace weft::test
