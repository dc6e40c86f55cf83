// Mask: one bit per weight of a [rows, cols] matrix, and nothing about how it was found.
//
// Bits are stored row by row in 64-bit words; every row begins a new word, so that rows can be
// written from different threads. Column c of a row is bit c % 64 of word c / 64; the bits past the
// last column are zero, so that equal masks have equal words.
#pragma once

#include <cassert>
#include <cstdint>
#include <vector>

namespace weft {

class Mask {
 public:
  Mask() = default;
  Mask(int64_t rows, int64_t cols);  // all bits zero

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }

  bool at(int64_t row, int64_t col) const;
  void set(int64_t row, int64_t col, bool kept);

  // `count` <= 64 bits of a row, beginning at `col`; the first column is the lowest bit.
  uint64_t bits(int64_t row, int64_t col, int count) const {
    assert(row >= 0 && row < rows_ && col >= 0 && count >= 0 && count <= 64 &&
           col + count <= cols_);
    if (count == 0) return 0;
    const uint64_t* word = words_.data() + row * words_per_row_ + col / 64;
    const int shift = static_cast<int>(col % 64);
    uint64_t found = word[0] >> shift;
    if (shift + count > 64) found |= word[1] << (64 - shift);
    return count == 64 ? found : found & ((uint64_t{1} << count) - 1);
  }
  void put_bits(int64_t row, int64_t col, int count, uint64_t bits);

  // The words of a row, to write many at once; bits past the last column must stay zero.
  uint64_t* row_words(int64_t row) { return words_.data() + row * words_per_row_; }
  const uint64_t* row_words(int64_t row) const { return words_.data() + row * words_per_row_; }

  int64_t count() const;   // kept weights
  double density() const;  // kept / all; 1 for an empty matrix
  Mask transposed() const;
  Mask slice_rows(int64_t first, int64_t count) const;

  // Weights that one of two masks keeps and the other does not; they must be of the same size.
  static int64_t differing(const Mask& a, const Mask& b);

  friend bool operator==(const Mask&, const Mask&) = default;

 private:
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  int64_t words_per_row_ = 0;
  std::vector<uint64_t> words_;
};

// Writes a row from left to right, a few bits at a time, in whole words.
class MaskRowWriter {
 public:
  explicit MaskRowWriter(uint64_t* words) : words_(words) {}  // of the row

  // The lowest `count` bits, 1 <= count <= 64; those above are ignored.
  void append(uint64_t bits, int count) {
    assert(count >= 1 && count <= 64);
    bits &= ~uint64_t{0} >> (64 - count);
    word_ |= bits << filled_;
    filled_ += count;
    if (filled_ < 64) return;
    *words_++ = word_;
    filled_ -= 64;
    word_ = filled_ == 0 ? 0 : bits >> (count - filled_);
  }
  void finish() {
    if (filled_ > 0) *words_ = word_;
  }

 private:
  uint64_t* words_;
  uint64_t word_ = 0;
  int filled_ = 0;  // bits of word_, fewer than 64
};

}  // namespace weft
