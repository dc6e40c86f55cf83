// Weights stored [ins, outs], read and written as if they were [outs, ins].
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/checkpoint/tensor_files.h"
#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/stored_weight.h"

namespace weft::test {
namespace {

// [outs, ins, taps] values as bytes, and the same stored [ins, outs, taps].
struct BothWays {
  int64_t outs, ins, taps;
  std::string plain, transposed;

  BothWays(int64_t outs, int64_t ins, int64_t taps) : outs(outs), ins(ins), taps(taps) {
    std::vector<uint16_t> there, back(static_cast<size_t>(outs * ins * taps));
    for (int64_t o = 0; o < outs; ++o) {
      for (int64_t i = 0; i < ins; ++i) {
        for (int64_t t = 0; t < taps; ++t) {
          there.push_back(static_cast<uint16_t>(there.size()));
          back[static_cast<size_t>((i * outs + o) * taps + t)] = there.back();
        }
      }
    }
    plain.assign(reinterpret_cast<const char*>(there.data()), there.size() * 2);
    transposed.assign(reinterpret_cast<const char*>(back.data()), back.size() * 2);
  }
  std::vector<int64_t> stored_shape() const {
    return taps == 1 ? std::vector<int64_t>{ins, outs} : std::vector<int64_t>{ins, outs, 1, taps};
  }
};

TEST(StoredWeight, BandsOfATransposedOneAreThoseOfThePlainOneAndGoBackToTheirPlaces) {
  for (const auto& [outs, ins, taps] : {std::array<int64_t, 3>{5, 7, 1},
                                        {12, 4, 1},
                                        {1, 9, 1},
                                        {33, 65, 1},
                                        {6, 10, 3},
                                        {9, 1, 4}}) {
    const BothWays weights(outs, ins, taps);
    const ScratchFolder folder;
    const std::vector<TensorInfo> infos = {tensor("before", Dtype::kF16, {3}),
                                           tensor("w", Dtype::kF16, weights.stored_shape())};
    const auto bytes = std::as_bytes(std::span(weights.transposed));
    {
      SafetensorsWriter writer(folder / "m.safetensors", infos, {});
      writer.write("before", 0, std::as_bytes(std::span("abcdef", 6)));
      writer.write("w", 0, bytes);
      writer.commit();
    }
    const Checkpoint checkpoint = Checkpoint::open(folder / "m.safetensors");
    const StoredWeight weight{find(checkpoint, "w"), true};
    EXPECT_EQ(weight.shape().outs, outs);
    EXPECT_EQ(weight.shape().ins, ins);
    EXPECT_EQ(weight.shape().taps, taps);
    for (const uint64_t target : {uint64_t{1}, uint64_t{100}, uint64_t{1} << 20}) {
      for (const int64_t multiple : {1, 2, 4}) {
        std::string read;
        CheckpointWriter copy(folder / "copy.safetensors", checkpoint, {});
        copy.copy(checkpoint, find(checkpoint, "before"));
        for_each_band(
            checkpoint, weight, multiple,
            [&](const Band& band) {
              EXPECT_EQ(read.size(), band.offset);
              read.append(reinterpret_cast<const char*>(band.bytes.data()), band.bytes.size());
              write_band(copy, weight, band);
            },
            target);
        EXPECT_TRUE(read == weights.plain) << outs << " " << ins << " " << taps;
        copy.commit();
        EXPECT_TRUE(contents(folder / "copy.safetensors") == contents(folder / "m.safetensors"));
      }
    }
    const int64_t out = outs - 1, in = ins / 2, tap = taps - 1;
    const std::vector<int64_t> index = weight.index_of(out, in * taps + tap);
    EXPECT_EQ(index[0], in);
    EXPECT_EQ(index[1], out);
  }
}

TEST(StoredWeight, AVectorCannotBeTransposed) {
  const StoredWeight weight{{tensor("w", Dtype::kF32, {3}), 0}, true};
  EXPECT_TRUE(
      contains(message_of([&] { weight.dims(); }), "'w' of shape [3] cannot be transposed"));
}

}  // namespace
}  // namespace weft::test
