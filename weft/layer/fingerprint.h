// A fingerprint of weights: tells whether they are still the ones that were seen last.
//
//   hash of { weights[place] : 256 places, scattered over all rows and columns }
//
// A few hundred weights stand for all, because an optimiser moves nearly every one of them. An edit
// of a few weights may go unseen: who makes it says so (Layer::weights_changed). The same values
// have the same fingerprint as float and as double. Cost: 256 reads, about a microsecond.
#pragma once

#include <array>
#include <cstdint>

namespace weft {

inline constexpr int64_t kFingerprintPlaces = 256;

// Of the first of `size` weights to the last; all zero if there are none.
std::array<int64_t, kFingerprintPlaces> fingerprint_places(int64_t size);

// Of weights at those places, which an adapter has gathered where they are: on another device.
uint64_t fingerprint_of_places(const double* gathered, int64_t size);  // gathered: [places]

// weights: [size]
uint64_t fingerprint(const float* weights, int64_t size);

}  // namespace weft
