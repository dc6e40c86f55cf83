#include "weft/core/mask.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

#include "weft/core/bits.h"
#include "weft/core/error.h"

namespace weft {
namespace {

uint64_t low_bits(int count) { return count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

// 64 x 64 bits, bit c of word r: exchanges the off-diagonal quarters, then within each quarter, and
// so on down to single bits.
void transpose_block(std::array<uint64_t, 64>& block) {
  uint64_t low = 0x00000000ffffffff;  // the lower half of every 2 * size bits
  for (size_t size = 32; size > 0; size /= 2, low ^= low << size) {
    for (size_t upper = 0; upper < 64; upper += 2 * size) {
      for (size_t r = upper; r < upper + size; ++r) {
        const uint64_t change = ((block[r] >> size) ^ block[r + size]) & low;
        block[r] ^= change << size;
        block[r + size] ^= change;
      }
    }
  }
}

}  // namespace

Mask::Mask(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {
  WEFT_CHECK(rows >= 0 && cols >= 0, "mask of {} x {}: sizes must not be negative", rows, cols);
  int64_t all = 0;
  WEFT_CHECK(!__builtin_mul_overflow(rows, cols, &all),
             "mask of {} x {}: accepted are at most 2^63 - 1 weights", rows, cols);
  words_per_row_ = cols / 64 + (cols % 64 != 0);  // cols + 63 could overflow when rows is 0
  words_.resize(static_cast<size_t>(rows * words_per_row_));
}

bool Mask::at(int64_t row, int64_t col) const { return bits(row, col, 1) != 0; }

void Mask::set(int64_t row, int64_t col, bool kept) { put_bits(row, col, 1, kept ? 1 : 0); }

void Mask::put_bits(int64_t row, int64_t col, int count, uint64_t bits) {
  assert(row >= 0 && row < rows_ && col >= 0 && count >= 0 && count <= 64 && col + count <= cols_);
  if (count == 0) return;
  uint64_t* word = words_.data() + row * words_per_row_ + col / 64;
  const int shift = static_cast<int>(col % 64);
  const uint64_t ones = low_bits(count);
  bits &= ones;
  word[0] = (word[0] & ~(ones << shift)) | (bits << shift);
  if (shift + count > 64) {
    const int done = 64 - shift;
    word[1] = (word[1] & ~(ones >> done)) | (bits >> done);
  }
}

int64_t Mask::count() const {
  int64_t total = 0;
  for (const uint64_t word : words_) total += popcount64(word);
  return total;
}

Mask Mask::slice_rows(int64_t first, int64_t count) const {
  assert(first >= 0 && count >= 0 && first + count <= rows_);
  Mask part(count, cols_);
  std::copy_n(words_.begin() + first * words_per_row_, count * words_per_row_, part.words_.begin());
  return part;
}

int64_t Mask::differing(const Mask& a, const Mask& b) {
  WEFT_CHECK(a.rows_ == b.rows_ && a.cols_ == b.cols_, "masks of {}x{} and {}x{}", a.rows_, a.cols_,
             b.rows_, b.cols_);
  int64_t total = 0;
  for (size_t i = 0; i < a.words_.size(); ++i) total += popcount64(a.words_[i] ^ b.words_[i]);
  return total;
}

double Mask::density() const {
  const int64_t all = rows_ * cols_;
  return all == 0 ? 1.0 : static_cast<double>(count()) / static_cast<double>(all);
}

Mask Mask::transposed() const {
  Mask result(cols_, rows_);
  std::array<uint64_t, 64> block;
  for (int64_t row = 0; row < rows_; row += 64) {
    const int64_t height = std::min<int64_t>(64, rows_ - row);
    for (int64_t word = 0; word < words_per_row_; ++word) {
      block.fill(0);
      for (int64_t r = 0; r < height; ++r) {
        block[static_cast<size_t>(r)] =
            words_[static_cast<size_t>((row + r) * words_per_row_ + word)];
      }
      transpose_block(block);
      for (int64_t c = 64 * word; c < std::min(cols_, 64 * (word + 1)); ++c) {
        result.words_[static_cast<size_t>(c * result.words_per_row_ + row / 64)] =
            block[static_cast<size_t>(c % 64)];
      }
    }
  }
  return result;
}

}  // namespace weft
