#include "weft/report/mask_picture.h"

#include <algorithm>

#include "weft/checkpoint/stored_weight.h"

namespace weft {
namespace {

MaskPicture picture_of(const Checkpoint& checkpoint, const StoredWeight& weight,
                       const Promise& promise) {
  const WeightShape shape = weight.shape();
  const int64_t group = promise.pattern.group();
  MaskPicture picture{weight.tensor.info.name,
                      promise.pattern,
                      std::string(axis_name(promise.axis)),
                      shape.outs,
                      shape.ins,
                      shape.taps,
                      {}};
  const std::vector<int64_t> rows =
      even_sample(shape.outs, promise.pattern.block(), MaskPicture::kMostPixels);
  // Groups follow each other within a tap; the last of a tap may be shorter, so taps are sampled as
  // if they had whole groups only.
  const int64_t groups = (shape.ins + group - 1) / group;
  std::vector<int64_t> cols;
  for (const int64_t slot :
       even_sample(groups * group * shape.taps, group, MaskPicture::kMostPixels)) {
    const int64_t tap = slot / (groups * group), in = slot % (groups * group);
    if (in < shape.ins) cols.push_back(in * shape.taps + tap);
  }
  picture.bitmap.width = static_cast<int>(cols.size());
  picture.bitmap.height = static_cast<int>(rows.size());
  const Dtype dtype = weight.tensor.info.dtype;
  std::vector<std::byte> bytes(static_cast<size_t>(shape.cols() * dtype_bits(dtype) / 8));
  for (const int64_t row : rows) {
    read_outs(checkpoint, weight, row, bytes);
    const Mask kept = nonzero_mask(dtype, bytes, 1, shape.cols());
    for (const int64_t col : cols) picture.bitmap.bits.push_back(kept.at(0, col));
  }
  return picture;
}

}  // namespace

double MaskPicture::density() const {
  const auto kept = std::count(bitmap.bits.begin(), bitmap.bits.end(), true);
  return bitmap.bits.empty() ? 0.0
                             : static_cast<double>(kept) / static_cast<double>(bitmap.bits.size());
}

std::vector<int64_t> even_sample(int64_t size, int64_t block, int64_t most) {
  const int64_t blocks = (size + block - 1) / block;
  const int64_t drawn = size <= most ? blocks : std::max<int64_t>(1, most / block);
  std::vector<int64_t> sample;
  for (int64_t i = 0; i < drawn; ++i) {
    const int64_t begin = (drawn == 1 ? 0 : i * (blocks - 1) / (drawn - 1)) * block;
    for (int64_t k = begin; k < std::min(begin + block, size); ++k) sample.push_back(k);
  }
  if (static_cast<int64_t>(sample.size()) > most) sample.resize(static_cast<size_t>(most));
  return sample;
}

std::vector<MaskPicture> mask_pictures(const std::filesystem::path& model) {
  const Checkpoint checkpoint = Checkpoint::open(model);
  const Sparsity sparsity = checkpoint.sparsity();
  std::vector<MaskPicture> pictures;
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    const auto promised = sparsity.tensors.find(tensor.info.name);
    if (promised == sparsity.tensors.end()) continue;
    const StoredWeight weight{tensor, promised->second.transposed};
    const bool drawn = WeightShape::accepts(tensor.info.shape) && has_zero(tensor.info.dtype) &&
                       weight.shape().outs > 0 && weight.shape().cols() > 0;
    if (drawn) pictures.push_back(picture_of(checkpoint, weight, promised->second));
  }
  return pictures;
}

}  // namespace weft
