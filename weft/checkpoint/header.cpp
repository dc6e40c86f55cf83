#include "weft/checkpoint/header.h"

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_set>

#include "weft/core/error.h"
#include "weft/core/json.h"
#include "weft/core/text.h"

namespace weft {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr size_t kMaxDims = 64;

// Builds the Header while the JSON is read, without a document tree in between: whatever is not a
// safetensors header is refused at once, so that memory stays proportional to the text, and
// duplicate names, which a tree would swallow, are seen.
class HeaderReader : public JsonEvents {
 public:
  HeaderReader(Header& header, const std::string& file) : header_(header), file_(file) {}

  void begin_object() override {
    if (place_ == Place::kStart) {
      place_ = Place::kFile;
    } else if (place_ == Place::kFile) {
      place_ = is_metadata_ ? Place::kMetadata : Place::kTensor;
    } else {
      refuse("an object where a value is expected");
    }
  }

  void name(std::string& name) override {
    if (place_ == Place::kFile) {
      begin_entry(name);
    } else if (place_ == Place::kMetadata) {
      metadata_key_ = name;
    } else {
      begin_field(name);
    }
  }

  void text(std::string& value) override {
    if (place_ == Place::kMetadata) {
      if (!header_.metadata.emplace(metadata_key_, value).second) {
        refuse(fmt::format("key '{}' appears twice", printable(metadata_key_)));
      }
    } else if (place_ == Place::kTensor && field_ == "dtype") {
      const std::optional<Dtype> dtype = parse_dtype(value);
      if (!dtype) refuse(fmt::format("unknown dtype '{}'", printable(value)));
      tensor().dtype = *dtype;
    } else {
      refuse("a text where something else is expected");
    }
  }

  void begin_list() override {
    if (place_ != Place::kTensor || field_ == "dtype") refuse("a list where none is expected");
    place_ = Place::kNumbers;
    numbers_.clear();
  }

  void whole(uint64_t value) override {
    if (place_ != Place::kNumbers) refuse("a number where none is expected");
    if (field_ == "shape" && value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      refuse(fmt::format("dimension {} is too large", value));
    }
    numbers_.push_back(value);
    if (numbers_.size() > kMaxDims)
      refuse(fmt::format("more than {} numbers in {}", kMaxDims, field_));
  }

  void end_list() override {
    place_ = Place::kTensor;
    if (field_ == "shape") {
      tensor().shape.assign(numbers_.begin(), numbers_.end());
    } else {
      if (numbers_.size() != 2) {
        refuse(fmt::format("data_offsets has {} numbers, not 2", numbers_.size()));
      }
      tensor().begin = numbers_[0];
      tensor().end = numbers_[1];
    }
  }

  void end_object() override {
    if (place_ == Place::kTensor) {
      for (const char* field : {"dtype", "shape", "data_offsets"}) {
        if (!fields_seen_.contains(field)) refuse(fmt::format("no {}", field));
      }
    }
    place_ = place_ == Place::kFile ? Place::kEnd : Place::kFile;
  }

  void null() override {
    // "__metadata__": null is no metadata, as it is to the format's own library.
    if (place_ != Place::kFile || !is_metadata_) refuse("null where a value is expected");
  }
  void boolean(bool) override { refuse("true or false where neither is expected"); }
  void negative(int64_t value) override { refuse(fmt::format("negative number {}", value)); }
  void real(double, const std::string& text) override {
    refuse(fmt::format("{} is not a whole number of 64 bits", printable(text, 40)));
  }

  bool complete() const { return place_ == Place::kEnd; }

 private:
  enum class Place { kStart, kFile, kMetadata, kTensor, kNumbers, kEnd };

  TensorInfo& tensor() { return header_.tensors.back(); }

  void begin_entry(const std::string& name) {
    is_metadata_ = name == kMetadataKey;
    const bool fresh = names_seen_.insert(name).second;
    fields_seen_.clear();
    if (!is_metadata_) header_.tensors.emplace_back().name = name;
    if (!fresh) refuse("the name appears twice");
  }

  void begin_field(const std::string& name) {
    if (name != "dtype" && name != "shape" && name != "data_offsets") {
      refuse(fmt::format("unknown field '{}'", printable(name)));
    }
    if (!fields_seen_.insert(name).second) refuse(fmt::format("{} appears twice", name));
    field_ = name;
  }

  [[noreturn]] void refuse(const std::string& problem) const {
    if (place_ == Place::kStart || names_seen_.empty()) {
      throw Error(fmt::format("{}: header is not an object of tensors: {}", file_, problem));
    }
    if (is_metadata_) throw Error(fmt::format("{}: __metadata__: {}", file_, problem));
    throw Error(
        fmt::format("{}: tensor '{}': {}", file_, printable(header_.tensors.back().name), problem));
  }

  Header& header_;
  const std::string& file_;
  Place place_ = Place::kStart;
  bool is_metadata_ = false;
  std::string metadata_key_;
  std::string field_;
  std::vector<uint64_t> numbers_;
  std::unordered_set<std::string> names_seen_;
  std::set<std::string> fields_seen_;
};

[[noreturn]] void refuse_tensor(const std::string& file, const TensorInfo& tensor,
                                const std::string& problem) {
  throw Error(fmt::format("{}: tensor '{}': {}", file, printable(tensor.name), problem));
}

void check_extent(const TensorInfo& tensor, uint64_t data_bytes, const std::string& file) {
  if (tensor.begin > tensor.end) {
    refuse_tensor(file, tensor,
                  fmt::format("data begins at {}, after its end at {}", tensor.begin, tensor.end));
  }
  uint64_t needed = 0;
  try {
    needed = tensor_bytes(tensor.dtype, tensor.shape);
  } catch (const Error& error) {
    refuse_tensor(file, tensor, error.what());
  }
  if (needed != tensor.bytes()) {
    refuse_tensor(
        file, tensor,
        fmt::format("{} of shape {} takes {} bytes, but its data_offsets span {}",
                    dtype_name(tensor.dtype), shape_text(tensor.shape), needed, tensor.bytes()));
  }
  if (tensor.end > data_bytes) {
    refuse_tensor(file, tensor,
                  fmt::format("data ends at {}, but the file has {} bytes of data: "
                              "the file is truncated",
                              tensor.end, data_bytes));
  }
}

void check_tiling(const std::vector<TensorInfo>& tensors, uint64_t data_bytes,
                  const std::string& file) {
  uint64_t reached = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin > reached) {
      refuse_tensor(
          file, tensor,
          fmt::format("begins at {}, which leaves a hole after {}", tensor.begin, reached));
    }
    if (tensor.begin < reached) {
      refuse_tensor(file, tensor,
                    fmt::format("begins at {}, inside the tensor before it, which "
                                "ends at {}: they overlap",
                                tensor.begin, reached));
    }
    reached = tensor.end;
  }
  WEFT_CHECK(reached == data_bytes, "{}: {} trailing bytes after the last tensor", file,
             data_bytes - reached);
}

std::string json_text(const Json& value) {
  try {
    return value.dump();
  } catch (const Error&) {
    throw Error("a name or a text of the metadata is not valid UTF-8");
  }
}

}  // namespace

int64_t TensorInfo::elements() const {
  uint64_t product = 1;  // unsigned: [2^62, 2, 0] is a legal shape, and passes 2^63 on its way to 0
  for (const int64_t dim : shape) product *= static_cast<uint64_t>(dim);
  return static_cast<int64_t>(product);
}

uint64_t tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape) {
  uint64_t bits = 1;
  bool overflow = false;
  for (const int64_t dim : shape) {
    WEFT_CHECK(dim >= 0, "shape {} has a negative dimension", shape_text(shape));
    overflow |= __builtin_mul_overflow(bits, static_cast<uint64_t>(dim), &bits);
  }
  overflow |= bits > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  overflow |= __builtin_mul_overflow(bits, static_cast<uint64_t>(dtype_bits(dtype)), &bits);
  WEFT_CHECK(!overflow, "the size of shape {} overflows", shape_text(shape));
  WEFT_CHECK(bits % 8 == 0, "{} of shape {} does not end on a whole byte", dtype_name(dtype),
             shape_text(shape));
  return bits / 8;
}

Header parse_header(std::string_view json, uint64_t data_bytes, const std::string& file) {
  WEFT_CHECK(!json.empty() && json.front() == '{', "{}: header does not begin with '{{'", file);
  Header header;
  HeaderReader reader(header, file);
  read_json(json, file + ": header is", reader);
  WEFT_CHECK(reader.complete(), "{}: header is incomplete", file);

  for (const TensorInfo& tensor : header.tensors) check_extent(tensor, data_bytes, file);
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorInfo& a, const TensorInfo& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
                   });
  check_tiling(header.tensors, data_bytes, file);
  return header;
}

std::string format_header(std::vector<TensorInfo>& tensors, const Metadata& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += json_text(kMetadataKey) + ':' + json_text(metadata);
  uint64_t reached = 0;
  std::unordered_set<std::string_view> names;
  for (TensorInfo& tensor : tensors) {
    WEFT_CHECK(tensor.name != kMetadataKey && names.insert(tensor.name).second,
               "tensor '{}': another tensor has this name", printable(tensor.name));
    tensor.begin = reached;
    tensor.end = reached + tensor_bytes(tensor.dtype, tensor.shape);
    reached = tensor.end;
    const Json entry = {{"dtype", dtype_name(tensor.dtype)},
                        {"shape", tensor.shape},
                        {"data_offsets", {tensor.begin, tensor.end}}};
    if (text.size() > 1) text += ',';
    text += json_text(tensor.name) + ':' + entry.dump();
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  WEFT_CHECK(text.size() <= kMaxHeaderBytes, "header of {} bytes: accepted are at most {}",
             text.size(), kMaxHeaderBytes);

  std::string prefix(8, '\0');
  for (int i = 0; i < 8; ++i)
    prefix[static_cast<size_t>(i)] = static_cast<char>(text.size() >> (8 * i));
  return prefix + text;
}

}  // namespace weft
