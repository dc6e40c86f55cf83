#include "weft/torch/tensor_file.h"

#include <fmt/format.h>

#include "weft/core/text.h"
#include "weft/run/tensor_checksum.h"

namespace weft {
namespace {

constexpr std::pair<torch::ScalarType, Dtype> kDtypes[] = {
    {torch::kFloat, Dtype::kF32},     {torch::kDouble, Dtype::kF64}, {torch::kHalf, Dtype::kF16},
    {torch::kBFloat16, Dtype::kBf16}, {torch::kLong, Dtype::kI64},   {torch::kInt, Dtype::kI32},
    {torch::kByte, Dtype::kU8},       {torch::kBool, Dtype::kBool}};

Dtype dtype_of(const torch::Tensor& tensor, const std::string& name) {
  for (const auto& [torchs, ours] : kDtypes) {
    if (torchs == tensor.scalar_type()) return ours;
  }
  throw Error(
      fmt::format("tensor '{}': {} cannot be stored", name, c10::toString(tensor.scalar_type())));
}

torch::ScalarType torch_type(const TensorInfo& info, const std::string& file) {
  for (const auto& [torchs, ours] : kDtypes) {
    if (ours == info.dtype) return torchs;
  }
  throw Error(fmt::format("{}: tensor '{}': torch has no type {}", file, printable(info.name),
                          dtype_name(info.dtype)));
}

std::span<std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

}  // namespace

void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   Metadata metadata, Checksum checked) {
  std::vector<TensorInfo> infos;
  std::vector<torch::Tensor> values;
  for (const auto& [name, tensor] : tensors) {
    values.push_back(tensor.detach().to(torch::kCPU).contiguous());
    infos.push_back({name, dtype_of(tensor, name), tensor.sizes().vec()});
    infos.back().end = values.back().nbytes();
  }
  if (checked == Checksum::kYes) {
    TensorBytes bytes;
    for (const torch::Tensor& value : values) bytes.push_back(bytes_of(value));
    metadata = with_checksum(infos, std::move(metadata), bytes);
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

TensorFile read_tensors(const std::filesystem::path& path, Checksum checked) {
  const SafetensorsReader reader(path);
  const std::string file = printable(path.string(), 4096);
  TensorFile found{reader.header().metadata, {}, file};
  const auto place = [&](const TensorInfo& info) {
    torch::Tensor tensor = torch::empty(info.shape, torch_type(info, file));
    found.tensors[info.name] = tensor;
    return bytes_of(tensor);
  };
  if (checked == Checksum::kYes) {
    read_checked(reader, place);
  } else {
    for (const TensorInfo& info : reader.header().tensors) reader.read(info, 0, place(info));
  }
  return found;
}

}  // namespace weft
