// The weights of a byte-level GPT, from a safetensors checkpoint, dense or packed by weft, in fp32.
// Exactly these tensors:
//
//   tokens.weight                    [256, width]
//   positions.weight                 [context, width]
//   blocks.<i>.norm1.weight, .bias   [width]                       i = 0 .. depth - 1
//   blocks.<i>.attention.qkv.weight  [3 * width, width]            .bias [3 * width]
//   blocks.<i>.attention.proj.weight [width, width]                .bias [width]
//   blocks.<i>.norm2.weight, .bias   [width]
//   blocks.<i>.fc1.weight            [hidden, width]               .bias [hidden]
//   blocks.<i>.fc2.weight            [width, hidden]               .bias [width]
//   norm.weight, .bias               [width]
//   head.weight                      [256, width]
//
// The rows of qkv are those of q, then of k, then of v; in each, the heads follow one another.
// Their number is not in the tensors: it is an argument.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "weft/checkpoint/checkpoint.h"
#include "weft/core/aligned_buffer.h"
#include "weft/core/matrix_view.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

struct GptShape {
  static constexpr int64_t kTokens = 256;  // a token is a byte

  int64_t width = 0;
  int64_t context = 0;
  int64_t depth = 0;
  int64_t hidden = 0;
  int64_t heads = 0;  // divides width
};

// What becomes of the matrices of the products (all but the two embeddings).
struct GptWeightOptions {
  // All of them dense, packed ones unpacked: for comparisons.
  bool dense = false;
  // Matrices that are stored dense, but are sparse along their inputs: to be packed. The promises
  // of the checkpoint's weft.sparsity (axis in or both) are taken too, unless a name is here
  // already.
  std::map<std::string, Pattern> patterns;
};

// A linear layer, for one token or for many: y = x wᵀ + bias + beta · y. A packed matrix is there
// in both layouts, since each is the faster for one of the two: in all about what it would be
// dense.
class LinearWeights {
 public:
  LinearWeights(PackedMatrix w, std::vector<float> bias);  // in stream layout; no bias: empty
  LinearWeights(AlignedBuffer<float> w, int64_t outs, int64_t ins, std::vector<float> bias);

  bool packed() const { return std::holds_alternative<Packed>(w_); }
  uint64_t bytes() const;  // of the matrix, as one token reads it
  // x: [tokens, ins], y: [tokens, outs]; beta is 0 or 1.
  void forward(MatrixView<const float> x, float beta, MatrixView<float> y) const;

 private:
  struct Dense {
    AlignedBuffer<float> values;
    int64_t outs = 0;
    int64_t ins = 0;
  };

  struct Packed {
    PackedMatrix stream;  // for few tokens
    PackedMatrix panels;  // for many
  };

  std::variant<Packed, Dense> w_;
  std::vector<float> bias_;
};

struct NormWeights {
  std::vector<float> weight, bias;
};

struct GptBlock {
  NormWeights norm1;
  LinearWeights qkv, proj;
  NormWeights norm2;
  LinearWeights fc1, fc2;
};

struct GptWeights {
  GptShape shape;
  std::vector<float> tokens;     // [256, width]
  std::vector<float> positions;  // [context, width]
  std::vector<GptBlock> blocks;
  NormWeights norm;
  LinearWeights head;

  uint64_t matrix_bytes() const;  // of all products: what one token reads
  int64_t packed_matrices() const;
};

// Reads and checks all of it. Throws Error that names the file and the tensor if one is missing,
// has another type or shape, belongs to no such model, or is not as sparse as it should be.
GptWeights read_gpt(const Checkpoint& checkpoint, int64_t heads,
                    const GptWeightOptions& options = {});

}  // namespace weft
