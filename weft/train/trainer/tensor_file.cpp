#include "weft/train/trainer/tensor_file.h"

#include <fmt/format.h>

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

uint32_t add_text(uint32_t sum, const std::string& text) {
  sum = checksum(sum, std::as_bytes(std::span(text)));
  return checksum(sum, std::as_bytes(std::span("\0", 1)));  // where it ends counts
}

// Of all that is said about tensors, without the checksum itself.
uint32_t header_checksum(const std::vector<TensorInfo>& tensors, const Metadata& metadata) {
  uint32_t sum = 0;
  for (const auto& [key, value] : metadata) {
    if (key != kChecksum) sum = add_text(add_text(sum, key), value);
  }
  for (const TensorInfo& info : tensors) {
    sum = add_text(add_text(sum, info.name), std::string(dtype_name(info.dtype)));
    sum = add_text(sum, shape_text(info.shape));
  }
  return sum;
}

}  // namespace

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   Metadata metadata, Checksum with_checksum) {
  std::vector<TensorInfo> infos;
  std::vector<torch::Tensor> values;
  for (const auto& [name, tensor] : tensors) {
    values.push_back(tensor.detach().to(torch::kCPU).contiguous());
    infos.push_back({name, dtype_of(tensor, name), tensor.sizes().vec()});
    infos.back().end = values.back().nbytes();
  }
  if (with_checksum == Checksum::kYes) {
    uint32_t sum = header_checksum(infos, metadata);
    for (const torch::Tensor& value : values) sum = checksum(sum, bytes_of(value));
    metadata[kChecksum] = fmt::format("{:08x}", sum);
  }
  SafetensorsWriter writer(path, infos, metadata);
  for (size_t i = 0; i < values.size(); ++i) writer.write(infos[i].name, 0, bytes_of(values[i]));
  writer.commit();
}

const torch::Tensor& TensorFile::at(const std::string& tensor) const {
  const auto found = tensors.find(tensor);
  WEFT_CHECK(found != tensors.end(), "{}: tensor '{}' is missing", name, tensor);
  return found->second;
}

const torch::Tensor& TensorFile::like(const torch::Tensor& model, const std::string& tensor) const {
  const torch::Tensor& found = at(tensor);
  WEFT_CHECK(found.sizes() == model.sizes() && found.scalar_type() == model.scalar_type(),
             "{}: tensor '{}' is not of the type and shape that the model has", name, tensor);
  return found;
}

torch::Tensor read_tensor(const Checkpoint& checkpoint, const ShardedTensor& tensor) {
  torch::Tensor found = torch::empty(
      tensor.info.shape, torch_type(tensor.info, printable(checkpoint.file_of(tensor), 4096)));
  checkpoint.read(tensor, 0, bytes_of(found));
  return found;
}

TensorFile read_tensors(const std::filesystem::path& path, Checksum with_checksum) {
  const SafetensorsReader reader(path);
  const std::string file = printable(path.string(), 4096);
  TensorFile found{reader.header().metadata, {}, file};
  uint32_t sum = header_checksum(reader.header().tensors, found.metadata);
  for (const TensorInfo& info : reader.header().tensors) {
    torch::Tensor tensor = torch::empty(info.shape, torch_type(info, file));
    reader.read(info, 0, bytes_of(tensor));
    if (with_checksum == Checksum::kYes) sum = checksum(sum, bytes_of(tensor));
    found.tensors[info.name] = tensor;
  }
  if (with_checksum == Checksum::kNo) return found;
  const auto expected = found.metadata.find(kChecksum);
  WEFT_CHECK(expected != found.metadata.end(), "{}: it has no checksum", file);
  WEFT_CHECK(expected->second == fmt::format("{:08x}", sum),
             "{}: damaged: its checksum is not that of its contents", file);
  return found;
}

}  // namespace weft
