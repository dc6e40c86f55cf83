// Where the parts of a packed buffer lie. The only place that knows.
#pragma once

#include "weft/pack/packed_matrix.h"

namespace weft {

// Byte offsets from the beginning of the buffer; every part begins on a cache line.
struct PackSections {
  size_t starts = 0;   // panel only
  size_t indices = 0;  // offsets (panel) or indices (stream)
  size_t values = 0;
  size_t end = 0;
};

// Throws Error if a field of the header is impossible, or the parts would overflow.
PackSections sections_of(const PackHeader& header);

int64_t panel_count(const PackHeader& header);
int64_t cell_count(const PackHeader& header);
// Groups in a row of the matrix: they begin anew with every segment.
int64_t group_count(const PackHeader& header);

// Throws Error unless the parts of a buffer from outside agree with its header.
void check_panel_contents(const PackedMatrix& packed);
void check_stream_contents(const PackedMatrix& packed);

}  // namespace weft
