#include "weft/data/idx.h"

#include <algorithm>
#include <array>
#include <string>
#include <system_error>

#include "weft/core/error.h"
#include "weft/data/byte_source.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kImagesMagic = 0x803;
constexpr uint32_t kLabelsMagic = 0x801;
constexpr uint32_t kMostSide = 4096;  // so that sizes fit 64 bits, whatever the count

// The one of the two that is there.
fs::path plain_or_gzip(const fs::path& folder, const std::string& name) {
  std::error_code ignored;
  for (const std::string& candidate : {name, name + ".gz"}) {
    if (fs::exists(folder / candidate, ignored)) return folder / candidate;
  }
  throw Error(fmt::format("{}: no such file, nor {}.gz", (folder / name).string(), name));
}

ByteSource::Form form_of(const fs::path& path) {
  return path.extension() == ".gz" ? ByteSource::Form::kGzip : ByteSource::Form::kPlain;
}

uint32_t read_word(ByteSource& source) {
  std::array<uint8_t, 4> bytes{};
  source.read(bytes, "the header");
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

void check_magic(ByteSource& source, uint32_t expected, const char* what) {
  const uint32_t magic = read_word(source);
  WEFT_CHECK(magic == expected, "{}: begins with {:#010x}, idx {} begin with {:#010x}",
             source.name(), magic, what, expected);
}

// The rest of the file, which must be just this long.
std::vector<uint8_t> read_rest(ByteSource& source, uint64_t header, uint64_t bytes,
                               const char* what) {
  WEFT_CHECK(source.gzip() || source.most_bytes() == header + bytes,
             "{}: the file has {} bytes, but by its header it should have {}", source.name(),
             source.most_bytes(), header + bytes);
  std::vector<uint8_t> rest = source.read(bytes, what);
  source.expect_end();
  return rest;
}

ImageSet read_split(const fs::path& folder, const std::string& split) {
  ImageSet set;
  set.channels = 1;
  const fs::path images_path = plain_or_gzip(folder, split + "-images-idx3-ubyte");
  ByteSource images(images_path, form_of(images_path));
  check_magic(images, kImagesMagic, "images");
  const uint64_t count = read_word(images);
  const uint64_t height = read_word(images);
  const uint64_t width = read_word(images);
  WEFT_CHECK(count >= 1 && height >= 1 && height <= kMostSide && width >= 1 && width <= kMostSide,
             "{}: {} images of {}x{}: at least one, with sides of 1 to {}", images.name(), count,
             height, width, kMostSide);
  set.pixels = read_rest(images, 16, count * height * width, "the pixels");

  const fs::path labels_path = plain_or_gzip(folder, split + "-labels-idx1-ubyte");
  ByteSource labels(labels_path, form_of(labels_path));
  check_magic(labels, kLabelsMagic, "labels");
  const uint64_t label_count = read_word(labels);
  WEFT_CHECK(label_count == count, "{}: {} labels, but {} has {} images", labels.name(),
             label_count, images.name(), count);
  set.labels = read_rest(labels, 8, count, "the labels");
  set.count = static_cast<int64_t>(count);
  set.height = static_cast<int64_t>(height);
  set.width = static_cast<int64_t>(width);
  return set;
}

int64_t count_classes(const fs::path& folder, const ImageSet& train) {
  std::array<bool, 256> seen{};
  for (const uint8_t label : train.labels) seen[label] = true;
  const int highest = *std::max_element(train.labels.begin(), train.labels.end());
  for (int label = 1; label < highest; ++label) {
    WEFT_CHECK(seen[static_cast<size_t>(label)],
               "{}: the highest label is {}, but no image has label {}: not labels of classes",
               plain_or_gzip(folder, "train-labels-idx1-ubyte").string(), highest, label);
  }
  return highest + 1;
}

}  // namespace

ImageData read_idx(const fs::path& folder) {
  ImageData data;
  data.train = read_split(folder, "train");
  data.test = read_split(folder, "t10k");
  WEFT_CHECK(data.test.height == data.train.height && data.test.width == data.train.width,
             "{}: images of {}x{}, but those to train with are {}x{}",
             plain_or_gzip(folder, "t10k-images-idx3-ubyte").string(), data.test.height,
             data.test.width, data.train.height, data.train.width);
  data.train.classes = data.test.classes = count_classes(folder, data.train);
  for (size_t i = 0; i < data.test.labels.size(); ++i) {
    WEFT_CHECK(data.test.labels[i] < data.test.classes,
               "{}: image {} has label {}, the highest label to train with is {}",
               plain_or_gzip(folder, "t10k-labels-idx1-ubyte").string(), i, data.test.labels[i],
               data.test.classes - 1);
  }
  data.normalisation = normalisation_of(data.train);
  return data;
}

}  // namespace weft
