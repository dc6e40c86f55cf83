// CRC-32 (the one of zlib and gzip) of bytes that come in pieces: begin with 0, pass the last on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft {

uint32_t checksum(uint32_t so_far, std::span<const std::byte> bytes);

}  // namespace weft
