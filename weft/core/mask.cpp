#include "weft/core/mask.h"

#include <bit>
#include <cassert>

#include "weft/core/error.h"

namespace weft {
namespace {

uint64_t low_bits(int count) { return count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

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

uint64_t Mask::bits(int64_t row, int64_t col, int count) const {
  assert(row >= 0 && row < rows_ && col >= 0 && count >= 0 && count <= 64 && col + count <= cols_);
  if (count == 0) return 0;
  const uint64_t* word = words_.data() + row * words_per_row_ + col / 64;
  const int shift = static_cast<int>(col % 64);
  uint64_t found = word[0] >> shift;
  if (shift + count > 64) found |= word[1] << (64 - shift);
  return found & low_bits(count);
}

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
  for (const uint64_t word : words_) total += std::popcount(word);
  return total;
}

double Mask::density() const {
  const int64_t all = rows_ * cols_;
  return all == 0 ? 1.0 : static_cast<double>(count()) / static_cast<double>(all);
}

Mask Mask::transposed() const {
  Mask result(cols_, rows_);
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = 0; c < cols_; ++c) {
      if (at(r, c)) result.set(c, r, true);
    }
  }
  return result;
}

}  // namespace weft
