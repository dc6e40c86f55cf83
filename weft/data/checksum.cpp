#include "weft/data/checksum.h"

#include <zlib.h>

namespace weft {

uint32_t checksum(uint32_t so_far, std::span<const std::byte> bytes) {
  // For a null pointer, which empty spans may have, zlib begins again instead of going on.
  if (bytes.empty()) return so_far;
  return static_cast<uint32_t>(
      ::crc32_z(so_far, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace weft
