// Any bytes as a safetensors file: either weft::Error, or a file that can be read to its last byte
// and whose header survives being written and read again.
#include <array>

#include "tests/fuzz/target.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/header.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/sparsity.h"

namespace weft::fuzz {
namespace {

void read_every_tensor(const SafetensorsReader& reader) {
  std::array<std::byte, 4096> piece;
  for (const TensorInfo& tensor : reader.header().tensors) {
    require(tensor.elements() >= 0, "a negative number of elements");
    require(tensor_bytes(tensor.dtype, tensor.shape) == tensor.bytes(),
            "the size is not the shape");
    for (uint64_t offset = 0; offset < tensor.bytes(); offset += piece.size()) {
      const uint64_t count = std::min<uint64_t>(piece.size(), tensor.bytes() - offset);
      reader.read(tensor, offset, std::span(piece).first(count));
    }
  }
}

bool same(const TensorInfo& a, const TensorInfo& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin &&
         a.end == b.end;
}

void write_and_read_again(const Header& header) {
  Header copy = header;
  const std::string text = format_header(copy.tensors, copy.metadata);
  const uint64_t data_bytes = header.tensors.empty() ? 0 : header.tensors.back().end;
  const Header again = parse_header(std::string_view(text).substr(8), data_bytes, "again");
  require(again.metadata == header.metadata, "the metadata changed");
  require(std::equal(again.tensors.begin(), again.tensors.end(), header.tensors.begin(),
                     header.tensors.end(), same),
          "the tensors changed");
}

void store_and_read_again(const Sparsity& sparsity) {
  Metadata metadata;
  sparsity.store_in(metadata);
  const Sparsity again = Sparsity::from_metadata(metadata, "again");
  require(std::equal(again.tensors.begin(), again.tensors.end(), sparsity.tensors.begin(),
                     sparsity.tensors.end(),
                     [](const auto& a, const auto& b) {
                       return a.first == b.first && a.second.pattern == b.second.pattern &&
                              a.second.axis == b.second.axis;
                     }),
          "the plan changed");
}

// A file that can be read is a checkpoint, whatever its plan says.
Checkpoint open_readable(const std::string& path) {
  try {
    return Checkpoint::open(path);
  } catch (const Error&) {
    throw std::logic_error("a readable file is refused as a checkpoint");
  }
}

}  // namespace

void safetensors(Input input) {
  const MemoryFile file(input);
  error_or_success([&] {
    const SafetensorsReader reader(file.path());
    read_every_tensor(reader);
    write_and_read_again(reader.header());
    store_and_read_again(open_readable(file.path()).sparsity());
  });
  // A plan is text within text, where a fuzzer that must also get the escapes right gets nowhere.
  error_or_success([&] {
    const Metadata metadata = {{"weft.sparsity", text_of(input)}};
    store_and_read_again(Sparsity::from_metadata(metadata, "plan"));
  });
}

}  // namespace weft::fuzz
