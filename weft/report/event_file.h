// TensorBoard's event files: records of protocol buffers.
//
//   record   length u64 · masked crc of the length u32 · event · masked crc of the event u32
//   event    1: wall_time double   2: step int64   3: file_version "brain.Event:2"
//            5: summary { 1: value { 1: tag   2: simple_value float } ... }
//
// Numbers are little-endian; a masked crc is CRC-32C, rotated right by 15 bits, plus 0xa282ead8.
// The first record has the version, every other the figures of a step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

struct Scalar {
  std::string tag;
  double value = 0.0;
};

// The record that a file begins with.
std::string first_event(double wall_time);
// A record with all figures of a step. wall_time: seconds since 1970.
std::string scalar_event(double wall_time, int64_t step, const std::vector<Scalar>& scalars);

// CRC-32C (Castagnoli), as in iSCSI: that of "123456789" is 0xe3069283.
uint32_t crc32c(std::string_view bytes);

}  // namespace weft
