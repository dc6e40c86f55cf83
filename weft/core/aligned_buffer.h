// AlignedBuffer: elements on a cache line of their own, not initialised.
//
// A std::vector would fill what a packer is about to write, and align to 16 bytes only.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#include "weft/core/error.h"

namespace weft {

constexpr size_t kCacheLine = 64;

template <typename T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t size) : size_(size) {
    size_t bytes = 0;
    WEFT_CHECK(!__builtin_mul_overflow(size, sizeof(T), &bytes) &&
                   !__builtin_add_overflow(bytes, kCacheLine - 1, &bytes),
               "a buffer of {} elements is too large", size);
    bytes = bytes / kCacheLine * kCacheLine;
    if (bytes == 0) return;
    data_.reset(static_cast<T*>(bytes < kLarge ? std::aligned_alloc(kCacheLine, bytes)
                                               : allocate_large(bytes)));
    if (!data_) throw std::bad_alloc();
  }
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  T* data() const { return data_.get(); }
  size_t size() const { return size_; }

  // At least `size` elements; what was there is lost if it grows.
  void reserve(size_t size) {
    if (size > size_) *this = AlignedBuffer(size);
  }

 private:
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t kLarge = 4 * kHugePage;

  // On huge pages if the system has them: what is streamed through once would otherwise wait for
  // the translation of every 4 KB.
  static void* allocate_large(size_t bytes) {
    bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* data = std::aligned_alloc(kHugePage, bytes);
#if defined(MADV_HUGEPAGE)
    if (data) madvise(data, bytes, MADV_HUGEPAGE);  // advice: nothing depends on it
#endif
    return data;
  }

  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace weft
