#include "weft/train/trainer/tensor_file.h"

#include <fmt/format.h>

#include "weft/checkpoint/safetensors.h"
#include "weft/core/text.h"
#include "weft/train/data/checksum.h"

namespace weft {
namespace {

constexpr const char* kChecksum = "weft.crc32";

constexpr std::pair<torch::ScalarType, Dtype> kDtypes[] = {
    {torch::kFloat, Dtype::kF32},     {torch::kDouble, Dtype::kF64}, {torch::kHalf, Dtype::kF16},
    {torch::kBFloat16, Dtype::kBf16}, {torch::kLong, Dtype::kI64},   {torch::kInt, Dtype::kI32},
    {torch::kByte, Dtype::kU8},       {torch::kBool, Dtype::kBool}};

Dtype dtype_of(const torch::Tensor& tensor, const std::string& name) {
  for (const auto& [torchs, ours] : kDtypes) {
    if (torchs == tensor.scalar_type()) return ours;
  }
  throw Error(fmt::format("tensor '{}' is of {}, which cannot be stored", name,
                          c10::toString(tensor.scalar_type())));
}

torch::ScalarType torch_type(const TensorInfo& info, const std::string& file) {
  for (const auto& [torchs, ours] : kDtypes) {
    if (ours == info.dtype) return torchs;
  }
  throw Error(fmt::format("{}: tensor '{}' is of {}, which torch does not have", file,
                          printable(info.name), dtype_name(info.dtype)));
}

std::span<std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   Metadata metadata) {
  std::vector<TensorInfo> infos;
  std::vector<torch::Tensor> values;
  uint32_t sum = 0;
  for (const auto& [name, tensor] : tensors) {
    values.push_back(tensor.detach().to(torch::kCPU).contiguous());
    infos.push_back({name, dtype_of(tensor, name), tensor.sizes().vec()});
    infos.back().end = values.back().nbytes();
    sum = checksum(sum, bytes_of(values.back()));
  }
  metadata[kChecksum] = fmt::format("{:08x}", sum);
  SafetensorsWriter writer(path, infos, metadata);
  for (size_t i = 0; i < values.size(); ++i) writer.write(infos[i].name, 0, bytes_of(values[i]));
  writer.commit();
}

TensorFile read_tensors(const std::filesystem::path& path) {
  const SafetensorsReader reader(path);
  const std::string file = printable(path.string(), 4096);
  TensorFile found{reader.header().metadata, {}};
  uint32_t sum = 0;
  for (const TensorInfo& info : reader.header().tensors) {
    torch::Tensor tensor = torch::empty(info.shape, torch_type(info, file));
    reader.read(info, 0, bytes_of(tensor));
    sum = checksum(sum, bytes_of(tensor));
    found.tensors[info.name] = tensor;
  }
  const auto expected = found.metadata.find(kChecksum);
  WEFT_CHECK(expected == found.metadata.end() || expected->second == fmt::format("{:08x}", sum),
             "{}: damaged: its checksum is not that of its tensors", file);
  return found;
}

}  // namespace weft
