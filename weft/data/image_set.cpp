#include "weft/data/image_set.h"

#include <array>
#include <cmath>

#include "weft/core/error.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

using Histogram = std::array<int64_t, 256>;  // pixels of each value

void check_set(const ImageSet& images) {
  WEFT_CHECK(images.count >= 1 && images.channels >= 1 && images.height >= 1 && images.width >= 1 &&
                 images.classes >= 1,
             "image set: {} images of {}x{}x{} in {} classes: each must be at least 1",
             images.count, images.channels, images.height, images.width, images.classes);
  WEFT_CHECK(images.pixels.size() == static_cast<size_t>(images.count * images.image_pixels()) &&
                 images.labels.size() == static_cast<size_t>(images.count),
             "image set: {} pixels and {} labels are not those of {} images of {}x{}x{}",
             images.pixels.size(), images.labels.size(), images.count, images.channels,
             images.height, images.width);
}

}  // namespace

std::span<const uint8_t> ImageSet::image(int64_t index) const {
  WEFT_CHECK(index >= 0 && index < count, "image {}: the set has {}", index, count);
  return std::span(pixels).subspan(static_cast<size_t>(index * image_pixels()),
                                   static_cast<size_t>(image_pixels()));
}

Normalisation normalisation_of(const ImageSet& images) {
  check_set(images);
  const int64_t plane = images.height * images.width;
  Normalisation result{std::vector<float>(static_cast<size_t>(images.channels)),
                       std::vector<float>(static_cast<size_t>(images.channels))};
  parallel_for(images.channels, [&](int64_t channel) {
    Histogram histogram{};
    for (int64_t image = 0; image < images.count; ++image) {
      const uint8_t* pixels = images.pixels.data() + (image * images.channels + channel) * plane;
      for (int64_t i = 0; i < plane; ++i) ++histogram[pixels[i]];
    }
    const double total = static_cast<double>(images.count * plane);
    double mean = 0;
    for (int value = 0; value < 256; ++value) {
      mean += static_cast<double>(histogram[static_cast<size_t>(value)]) / total * value / 255;
    }
    double variance = 0;
    for (int value = 0; value < 256; ++value) {
      const double distance = value / 255.0 - mean;
      variance +=
          static_cast<double>(histogram[static_cast<size_t>(value)]) / total * distance * distance;
    }
    // Pixels that differ at all have more than this; rounding of a constant has less.
    const bool constant = variance < 1e-18;
    result.mean[static_cast<size_t>(channel)] = static_cast<float>(mean);
    result.sd[static_cast<size_t>(channel)] =
        constant ? 1.0f : static_cast<float>(std::sqrt(variance));
  });
  return result;
}

void fill_batch(const ImageSet& images, const Normalisation& normalisation,
                std::span<const int64_t> indices, std::span<float> pixels,
                std::span<int64_t> labels) {
  check_set(images);
  const int64_t count = static_cast<int64_t>(indices.size());
  const int64_t plane = images.height * images.width;
  WEFT_CHECK(normalisation.mean.size() == static_cast<size_t>(images.channels) &&
                 normalisation.sd.size() == static_cast<size_t>(images.channels),
             "normalisation of {} and {} channels for images of {}", normalisation.mean.size(),
             normalisation.sd.size(), images.channels);
  WEFT_CHECK(pixels.size() == static_cast<size_t>(count * images.image_pixels()) &&
                 labels.size() == indices.size(),
             "a batch of {} images of {} pixels into room for {} pixels and {} labels", count,
             images.image_pixels(), pixels.size(), labels.size());
  for (const int64_t index : indices) {
    WEFT_CHECK(index >= 0 && index < images.count, "image {}: the set has {}", index, images.count);
  }
  parallel_for(count, [&](int64_t item) {
    const int64_t index = indices[static_cast<size_t>(item)];
    labels[static_cast<size_t>(item)] = images.labels[static_cast<size_t>(index)];
    const uint8_t* from = images.pixels.data() + index * images.image_pixels();
    float* to = pixels.data() + item * images.image_pixels();
    for (int64_t channel = 0; channel < images.channels; ++channel) {
      const float mean = normalisation.mean[static_cast<size_t>(channel)];
      const float sd = normalisation.sd[static_cast<size_t>(channel)];
      for (int64_t i = 0; i < plane; ++i) {
        to[channel * plane + i] =
            (static_cast<float>(from[channel * plane + i]) / 255.0f - mean) / sd;
      }
    }
  });
}

}  // namespace weft
