// Offsets of the parts of a packed buffer. The only place that knows them.
#pragma once

#include "weft/pack/packed_matrix.h"

namespace weft {

// Byte offsets from the beginning of the buffer; every part begins on a cache line.
struct PackSections {
  size_t starts = 0;  // panel and tile
  size_t starts_end = 0;
  size_t indices = 0;  // offsets (panel, tile) or indices (stream)
  size_t indices_end = 0;
  size_t values = 0;
  size_t values_end = 0;
  size_t order = 0;  // panel and tile, if the header says so
  size_t end = 0;
};

// Throws Error if a field of the header is impossible, or the parts would overflow.
PackSections sections_of(const PackHeader& header);

int64_t panel_count(const PackHeader& header);
int64_t cell_count(const PackHeader& header);
// Groups in a row of the matrix: they restart with every segment.
int64_t group_count(const PackHeader& header);

// Bits of an index of the stream layout: the fewest that hold 0 ... group - 1, and also `group`,
// the index of an unused slot, unless every group is full.
int stream_index_bits(int group, bool full);

// The header of a stream pack whose every group is full. segment: 0 for the whole depth.
PackHeader stream_header(int64_t rows, int64_t depth, const Pattern& pattern, Precision value_type,
                         int64_t segment);

// Throws Error unless the parts of a buffer from outside agree with its header.
void check_panel_contents(const PackedMatrix& packed);
void check_stream_contents(const PackedMatrix& packed);
void check_tile_contents(const PackedMatrix& packed);
// What panels and tiles have in common: where cells begin, and the order of rows.
void check_starts_and_order(const CellView& view, int64_t entries);

}  // namespace weft
