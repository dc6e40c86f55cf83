#include "weft/run/tensor_checksum.h"

#include <fmt/format.h>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/data/checksum.h"

namespace weft {
namespace {

constexpr const char* kChecksum = "weft.crc32";

uint32_t add_text(uint32_t sum, const std::string& text) {
  sum = checksum(sum, std::as_bytes(std::span(text)));
  return checksum(sum, std::as_bytes(std::span("\0", 1)));  // where it ends counts
}

std::string sum_of(const std::vector<TensorInfo>& tensors, const Metadata& metadata,
                   const TensorBytes& bytes) {
  uint32_t sum = 0;
  for (const auto& [key, value] : metadata) {
    if (key != kChecksum) sum = add_text(add_text(sum, key), value);
  }
  for (const TensorInfo& info : tensors) {
    sum = add_text(add_text(sum, info.name), std::string(dtype_name(info.dtype)));
    sum = add_text(sum, shape_text(info.shape));
  }
  for (const std::span<const std::byte> tensor : bytes) sum = checksum(sum, tensor);
  return fmt::format("{:08x}", sum);
}

}  // namespace

Metadata with_checksum(const std::vector<TensorInfo>& tensors, Metadata metadata,
                       const TensorBytes& bytes) {
  metadata[kChecksum] = sum_of(tensors, metadata, bytes);
  return metadata;
}

void read_checked(const SafetensorsReader& reader,
                  const std::function<std::span<std::byte>(const TensorInfo&)>& place) {
  const Header& header = reader.header();
  const std::string file = printable(reader.path().string(), 4096);
  const auto expected = header.metadata.find(kChecksum);
  WEFT_CHECK(expected != header.metadata.end(), "{}: the checksum is missing", file);
  TensorBytes bytes;
  for (const TensorInfo& info : header.tensors) {
    const std::span<std::byte> out = place(info);
    reader.read(info, 0, out);
    bytes.push_back(out);
  }
  WEFT_CHECK(expected->second == sum_of(header.tensors, header.metadata, bytes),
             "{}: damaged: its checksum does not match its contents", file);
}

}  // namespace weft
