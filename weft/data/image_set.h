// ImageSet: labelled images in memory, as they are stored: bytes. A batch is made into floats when
// it is needed, so that sixty thousand images of 28x28 take 47 MB and not 188.
//
//   value = (pixel / 255 - mean[channel]) / sd[channel]
//
// with mean and sd of the training images, whatever is being normalised.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

struct ImageSet {
  int64_t count = 0;
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t classes = 0;
  std::vector<uint8_t> pixels;  // [count, channels, height, width]
  std::vector<uint8_t> labels;  // [count], each below classes

  int64_t image_pixels() const { return channels * height * width; }
  std::span<const uint8_t> image(int64_t index) const;
};

struct Normalisation {
  std::vector<float> mean;  // [channels], of pixels / 255
  std::vector<float> sd;    // [channels]; 1 where all pixels are the same
};

struct ImageData {
  ImageSet train;
  ImageSet test;
  Normalisation normalisation;  // of train
};

// Sums whole numbers: the same for any number of threads.
Normalisation normalisation_of(const ImageSet& images);

// The images of `indices`, normalised. pixels: [indices, channels, height, width],
// labels: [indices]; they belong to the caller.
void fill_batch(const ImageSet& images, const Normalisation& normalisation,
                std::span<const int64_t> indices, std::span<float> pixels,
                std::span<int64_t> labels);

}  // namespace weft
