#include "weft/layer/fingerprint.h"

#include <bit>

#include "weft/core/error.h"

namespace weft {

namespace {

constexpr uint64_t kScatter = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio

int64_t place_of(int64_t i, int64_t size) {
  return static_cast<int64_t>((static_cast<uint64_t>(i) * kScatter >> 16) %
                              static_cast<uint64_t>(size));
}

uint64_t add(uint64_t hash, double weight) {
  hash = (hash ^ std::bit_cast<uint64_t>(weight)) * kScatter;
  return hash ^ (hash >> 29);
}

}  // namespace

std::array<int64_t, kFingerprintPlaces> fingerprint_places(int64_t size) {
  WEFT_CHECK(size >= 0, "a fingerprint of {} weights", size);
  std::array<int64_t, kFingerprintPlaces> places{};
  for (int64_t i = 0; size > 0 && i < kFingerprintPlaces; ++i) {
    places[static_cast<size_t>(i)] = place_of(i, size);
  }
  return places;
}

uint64_t fingerprint_of_places(const double* gathered, int64_t size) {
  WEFT_CHECK(size >= 0, "a fingerprint of {} weights", size);
  auto hash = static_cast<uint64_t>(size);
  for (int64_t i = 0; size > 0 && i < kFingerprintPlaces; ++i) hash = add(hash, gathered[i]);
  return hash;
}

uint64_t fingerprint(const float* weights, int64_t size) {
  WEFT_CHECK(size >= 0, "a fingerprint of {} weights", size);
  auto hash = static_cast<uint64_t>(size);
  for (int64_t i = 0; size > 0 && i < kFingerprintPlaces; ++i) {
    hash = add(hash, static_cast<double>(weights[place_of(i, size)]));
  }
  return hash;
}

}  // namespace weft
