#include "weft/train/batch_source.h"

#include "weft/core/error.h"
#include "weft/core/rng.h"
#include "weft/data/checksum.h"

namespace weft {
namespace {

std::span<const std::byte> raw(const std::vector<uint8_t>& bytes) {
  return std::as_bytes(std::span(bytes));
}

class ImageSource : public BatchSource {
 public:
  explicit ImageSource(ImageData data) : data_(std::move(data)) {}

  ModelShape shape() const override {
    const ImageSet& images = data_.train;
    return {images.channels, images.height, images.width, images.classes};
  }
  int64_t train_samples() const override { return data_.train.count; }
  int64_t test_samples() const override { return data_.test.count; }
  Batch train_batch(std::span<const int64_t> samples, int64_t) const override {
    return batch_of(data_.train, samples);
  }
  Batch test_batch(std::span<const int64_t> samples) const override {
    return batch_of(data_.test, samples);
  }
  std::string unit() const override { return "images"; }
  int64_t units_per_sample() const override { return 1; }
  uint32_t fingerprint() const override {
    uint32_t sum = 0;
    for (const ImageSet* images : {&data_.train, &data_.test}) {
      sum = checksum(checksum(sum, raw(images->pixels)), raw(images->labels));
    }
    return sum;
  }

 private:
  Batch batch_of(const ImageSet& images, std::span<const int64_t> samples) const {
    const auto count = static_cast<int64_t>(samples.size());
    Batch batch{torch::empty({count, images.channels, images.height, images.width}),
                torch::empty({count}, torch::kLong)};
    fill_batch(images, data_.normalisation, samples,
               {batch.inputs.data_ptr<float>(), static_cast<size_t>(batch.inputs.numel())},
               {batch.targets.data_ptr<int64_t>(), samples.size()});
    return batch;
  }

  ImageData data_;
};

// Windows of bytes. In every epoch they begin at another place, so that a model sees each byte with
// contexts of all lengths.
class TextSource : public BatchSource {
 public:
  TextSource(TextData data, const RunOptions& options)
      : data_(std::move(data)),
        context_(options.context),
        seed_(static_cast<uint64_t>(options.seed)) {
    WEFT_CHECK(data_.train.windows(context_) >= 2 && data_.test.windows(context_) >= 1,
               "data '{}': {} bytes to train on and {} to test: too few for a context of {}",
               options.data, data_.train.bytes.size(), data_.test.bytes.size(), context_);
  }

  ModelShape shape() const override { return {.classes = TextSet::kTokens}; }
  int64_t train_samples() const override { return data_.train.windows(context_) - 1; }
  int64_t test_samples() const override { return data_.test.windows(context_); }
  Batch train_batch(std::span<const int64_t> samples, int64_t position) const override {
    Batch batch = empty_batch(samples.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      const int64_t epoch = (position + static_cast<int64_t>(i)) / train_samples();
      const auto shift = static_cast<int64_t>(
          Rng(seed_, kShiftStream)
              .below(static_cast<uint64_t>(epoch), static_cast<uint64_t>(context_)));
      fill(data_.train, samples[i] * context_ + shift, i, batch);
    }
    return batch;
  }
  Batch test_batch(std::span<const int64_t> samples) const override {
    Batch batch = empty_batch(samples.size());
    for (size_t i = 0; i < samples.size(); ++i) fill(data_.test, samples[i] * context_, i, batch);
    return batch;
  }
  std::string unit() const override { return "tokens"; }
  int64_t units_per_sample() const override { return context_; }
  uint32_t fingerprint() const override {
    return checksum(checksum(0, raw(data_.train.bytes)), raw(data_.test.bytes));
  }

 private:
  static constexpr uint64_t kShiftStream = uint64_t{0x73686966} << 32;  // "shif"

  Batch empty_batch(size_t samples) const {
    const std::vector<int64_t> sizes = {static_cast<int64_t>(samples), context_};
    return {torch::empty(sizes, torch::kLong), torch::empty(sizes, torch::kLong)};
  }
  void fill(const TextSet& text, int64_t begin, size_t row, Batch& batch) const {
    const uint8_t* bytes = text.bytes.data() + begin;
    const auto offset = static_cast<int64_t>(row) * context_;
    std::copy_n(bytes, context_, batch.inputs.data_ptr<int64_t>() + offset);
    std::copy_n(bytes + 1, context_, batch.targets.data_ptr<int64_t>() + offset);
  }

  TextData data_;
  int64_t context_;
  uint64_t seed_;
};

}  // namespace

std::shared_ptr<BatchSource> make_batch_source(const RunOptions& options) {
  GlyphOptions glyphs;
  glyphs.train = options.train_images;
  glyphs.test = options.test_images;
  Data data = load_data(DataSpec::parse(options.data), glyphs);
  if (auto* images = std::get_if<ImageData>(&data)) {
    return std::make_shared<ImageSource>(std::move(*images));
  }
  return std::make_shared<TextSource>(std::move(std::get<TextData>(data)), options);
}

}  // namespace weft
