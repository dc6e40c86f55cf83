// StoredWeight: a weight of a file, read and written as [outs, ins] whichever way it is stored.
//
//   stored [outs, ins]    [outs, ins, kh, kw]    torch's Linear, Conv2d: as products want it
//   stored [ins, outs]    [ins, outs, kh, kw]    transposed: GPT-2's Conv1D, torch's
//   ConvTranspose2d
//
// Masks, products and calibration know the first form alone. Bands of a transposed weight are
// gathered from the columns of the file and scattered back, one read or write per input. Memory: a
// band, twice.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "weft/checkpoint/checkpoint.h"
#include "weft/core/weight_shape.h"

namespace weft {

struct StoredWeight {
  ShardedTensor tensor;     // as it is stored
  bool transposed = false;  // of two or four dimensions, then

  std::vector<int64_t> dims() const;  // [outs, ins] or [outs, ins, kh, kw]
  WeightShape shape() const { return WeightShape::of(dims()); }
  // The tensor with the name and type of this one, and dims() as its shape.
  TensorInfo info() const;
  // The index in the file of the weight at row `out`, column `col` of the [outs, cols] matrix.
  std::vector<int64_t> index_of(int64_t out, int64_t col) const;
};

// As for_each_band of checkpoint.h, in bands of outs. `offset` of a band counts in dims(): where
// the weight is transposed, that is not its place in the file.
void for_each_band(const Checkpoint& checkpoint, const StoredWeight& weight, int64_t multiple,
                   const std::function<void(const Band&)>& body,
                   uint64_t target_bytes = uint64_t{32} << 20);

// The bytes of some outs: [outs, ins] elements.
void read_outs(const Checkpoint& checkpoint, const StoredWeight& weight, int64_t first_out,
               std::span<std::byte> bytes);
std::vector<std::byte> read_weight(const Checkpoint& checkpoint, const StoredWeight& weight);

// Calls write(offset in the file, bytes) for the pieces of a band. Its elements may be of another
// size than those of the weight, as in a file of masks.
using WritePiece = std::function<void(uint64_t, std::span<const std::byte>)>;
void write_band(const StoredWeight& weight, const Band& band, const WritePiece& write);
void write_band(CheckpointWriter& writer, const StoredWeight& weight, const Band& band);

// to[c, r] = from[r, c], elements of `size` bytes.
std::vector<std::byte> transposed_elements(std::span<const std::byte> from, int64_t rows,
                                           int64_t cols, size_t size);
// The values of a whole weight, [outs, ins], in the order of the file.
std::vector<double> as_stored(const StoredWeight& weight, std::vector<double> values);

}  // namespace weft
