// What mvue.cpp is made of: the magnitudes of cells, and the sampler for columns of magnitudes.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "weft/core/matrix_view.h"
#include "weft/estimate/mvue.h"

namespace weft {

// norms [tokens, cells] of g [tokens, outs]: the L2 norm of a cell at a token, divided by the root
// of how many members it has, so that it is no larger than the largest of them. NaN or infinite if
// one of them is.
void cell_norms(MatrixView<const float> g, const Pattern& pattern, MatrixView<float> norms);

// A tile of g by members: plane m has member m of every cell, [tokens, stride]. Planes and rows
// begin on a cache line; past the last cell, and where a cell has no such member, there are zeros.
struct MemberPlanes {
  const float* data = nullptr;
  const double* inverses = nullptr;  // [stride]: of how many members a cell has
  int64_t share = 1;
  int64_t stride = 0;  // a multiple of 16
  int64_t size = 0;    // from one plane to the next
};
// norms: [tokens, stride]; the same numbers as above.
void plane_norms(const MemberPlanes& planes, int64_t tokens, float* norms);

uint64_t philox_key(const SampleKey& key);

struct ColumnsJob {
  MatrixView<const float> magnitudes;  // [tokens, cells], beginning with a group; of any sign
  MatrixView<float> scales;            // [tokens, cells]
  int keep = 1;
  int group = 1;
  Sampler sampler = Sampler::kExact;
  uint64_t key = 0;  // of Philox
  int64_t first_group = 0;
  int64_t first_cell = 0;
};
void sample_columns(const ColumnsJob& job);

// What is kept, and nothing else (kept_sample.h).
struct KeptJob {
  MemberPlanes planes;
  const float* magnitudes = nullptr;  // [tokens, planes.stride]
  int64_t tokens = 0;                 // beginning with a group
  MatrixView<const float> next;       // to be fetched meanwhile
  float* values = nullptr;            // [slots, share, planes.stride]
  int32_t* indices = nullptr;         // [slots, planes.stride]
  int keep = 1;
  int group = 1;
  Sampler sampler = Sampler::kExact;
  uint64_t key = 0;  // of Philox
  int64_t first_group = 0;
  int64_t first_cell = 0;
};
void sample_kept(const KeptJob& job);

// One group, for given words. scales and units may be empty: then they are not wanted.
struct OneGroup {
  std::span<const float> magnitudes;  // at most 64
  int keep = 1;
  Sampler sampler = Sampler::kExact;
  std::array<uint32_t, 2> words = {};
  std::span<float> scales = {};
  std::span<uint32_t> units = {};
};
void sample_one_group(const OneGroup& group);

}  // namespace weft
