#include "weft/checkpoint/stored_weight.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/text.h"

namespace weft {
namespace {

// The layout of a transposed weight: [ins, outs, unit bytes].
struct TransposedLayout {
  int64_t outs = 0;
  int64_t ins = 0;
};

TransposedLayout layout_of(const StoredWeight& weight) {
  const std::vector<int64_t> dims = weight.dims();
  return {dims[0], dims[1]};
}

}  // namespace

std::vector<int64_t> StoredWeight::dims() const {
  std::vector<int64_t> dims = tensor.info.shape;
  if (!transposed) return dims;
  WEFT_CHECK(WeightShape::accepts(dims), "tensor '{}' of shape {} cannot be transposed",
             printable(tensor.info.name), shape_text(dims));
  std::swap(dims[0], dims[1]);
  return dims;
}

TensorInfo StoredWeight::info() const {
  TensorInfo info = tensor.info;
  info.shape = dims();
  return info;
}

std::vector<int64_t> StoredWeight::index_of(int64_t out, int64_t col) const {
  std::vector<int64_t> index = WeightShape::index_of(dims(), out, col);
  if (transposed) std::swap(index[0], index[1]);
  return index;
}

std::vector<std::byte> transposed_elements(std::span<const std::byte> from, int64_t rows,
                                           int64_t cols, size_t size) {
  WEFT_CHECK(rows >= 0 && cols >= 0 &&
                 from.size() == static_cast<size_t>(rows) * static_cast<size_t>(cols) * size,
             "{} bytes are not [{}, {}] elements of {} bytes", from.size(), rows, cols, size);
  std::vector<std::byte> to(from.size());
  constexpr int64_t kTile = 32;  // its rows and columns stay in L1
  parallel_for((cols + kTile - 1) / kTile, [&](int64_t item) {
    const int64_t last_col = std::min(cols, (item + 1) * kTile);
    for (int64_t first = 0; first < rows; first += kTile) {
      for (int64_t c = item * kTile; c < last_col; ++c) {
        for (int64_t r = first; r < std::min(rows, first + kTile); ++r) {
          std::memcpy(to.data() + static_cast<size_t>(c * rows + r) * size,
                      from.data() + static_cast<size_t>(r * cols + c) * size, size);
        }
      }
    }
  });
  return to;
}

void read_outs(const Checkpoint& checkpoint, const StoredWeight& weight, int64_t first_out,
               std::span<std::byte> bytes) {
  const TensorInfo& info = weight.tensor.info;
  if (bytes.empty()) return;
  const int64_t outs = weight.dims()[0];
  const uint64_t out_bytes = info.bytes() / static_cast<uint64_t>(outs);
  if (!weight.transposed) {
    return checkpoint.read(weight.tensor, static_cast<uint64_t>(first_out) * out_bytes, bytes);
  }
  const int64_t ins = layout_of(weight).ins;
  const uint64_t unit = out_bytes / static_cast<uint64_t>(ins);
  const auto rows = static_cast<int64_t>(bytes.size() / out_bytes);
  std::vector<std::byte> columns(bytes.size());
  if (rows == outs) {
    checkpoint.read(weight.tensor, 0, columns);
  } else {
    const uint64_t piece = static_cast<uint64_t>(rows) * unit;
    for (int64_t i = 0; i < ins; ++i) {
      checkpoint.read(weight.tensor, static_cast<uint64_t>(i * outs + first_out) * unit,
                      std::span(columns).subspan(static_cast<uint64_t>(i) * piece, piece));
    }
  }
  const std::vector<std::byte> as_rows = transposed_elements(columns, ins, rows, unit);
  std::memcpy(bytes.data(), as_rows.data(), as_rows.size());
}

std::vector<std::byte> read_weight(const Checkpoint& checkpoint, const StoredWeight& weight) {
  std::vector<std::byte> bytes(weight.tensor.info.bytes());
  read_outs(checkpoint, weight, 0, bytes);
  return bytes;
}

void for_each_band(const Checkpoint& checkpoint, const StoredWeight& weight, int64_t multiple,
                   const std::function<void(const Band&)>& body, uint64_t target_bytes) {
  const TensorInfo info = weight.info();
  WEFT_CHECK(multiple >= 1, "bands of a multiple of {} rows: accepted is 1 or more", multiple);
  if (info.bytes() == 0) return;
  const int64_t rows = info.shape.empty() ? 0 : info.shape[0];
  WEFT_CHECK(rows > 0 && info.bytes() % static_cast<uint64_t>(rows) == 0,
             "{}: tensor '{}': {} of shape {} has no rows of whole bytes",
             checkpoint.file_of(weight.tensor), printable(info.name), dtype_name(info.dtype),
             shape_text(info.shape));
  const uint64_t row_bytes = info.bytes() / static_cast<uint64_t>(rows);
  multiple = std::min(multiple, rows);
  const uint64_t block_bytes = row_bytes * static_cast<uint64_t>(multiple);
  const auto most_blocks = static_cast<uint64_t>((rows + multiple - 1) / multiple);
  const uint64_t blocks = std::clamp<uint64_t>(target_bytes / block_bytes, 1, most_blocks);
  const int64_t band_rows = std::min(rows, static_cast<int64_t>(blocks) * multiple);

  std::vector<std::byte> buffer(static_cast<uint64_t>(band_rows) * row_bytes);
  for (int64_t first = 0; first < rows; first += band_rows) {
    const int64_t count = std::min(band_rows, rows - first);
    const std::span<std::byte> bytes(buffer.data(), static_cast<uint64_t>(count) * row_bytes);
    read_outs(checkpoint, weight, first, bytes);
    body({first, count, static_cast<uint64_t>(first) * row_bytes, bytes});
  }
}

void for_each_band(const Checkpoint& checkpoint, const ShardedTensor& tensor, int64_t multiple,
                   const std::function<void(const Band&)>& body, uint64_t target_bytes) {
  for_each_band(checkpoint, StoredWeight{tensor, false}, multiple, body, target_bytes);
}

void write_band(const StoredWeight& weight, const Band& band, const WritePiece& write) {
  if (band.bytes.empty()) return;
  const uint64_t out_bytes = band.bytes.size() / static_cast<uint64_t>(band.rows);
  if (!weight.transposed) {
    return write(static_cast<uint64_t>(band.first_row) * out_bytes, band.bytes);
  }
  const auto [outs, ins] = layout_of(weight);
  const uint64_t unit = out_bytes / static_cast<uint64_t>(ins);
  const std::vector<std::byte> columns = transposed_elements(band.bytes, band.rows, ins, unit);
  if (band.rows == outs) return write(0, columns);
  const uint64_t piece = static_cast<uint64_t>(band.rows) * unit;
  for (int64_t i = 0; i < ins; ++i) {
    write(static_cast<uint64_t>(i * outs + band.first_row) * unit,
          std::span(columns).subspan(static_cast<uint64_t>(i) * piece, piece));
  }
}

void write_band(CheckpointWriter& writer, const StoredWeight& weight, const Band& band) {
  write_band(weight, band, [&](uint64_t offset, std::span<const std::byte> bytes) {
    writer.write(weight.tensor, offset, bytes);
  });
}

std::vector<double> as_stored(const StoredWeight& weight, std::vector<double> values) {
  if (!weight.transposed || values.empty()) return values;
  const auto [outs, ins] = layout_of(weight);
  const std::vector<std::byte> as_rows =
      transposed_elements(std::as_bytes(std::span(values)), outs, ins,
                          sizeof(double) * static_cast<size_t>(weight.shape().taps));
  std::memcpy(values.data(), as_rows.data(), as_rows.size());
  return values;
}

}  // namespace weft
