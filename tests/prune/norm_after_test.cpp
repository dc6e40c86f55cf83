// The normalisation behind a layer: found by its name, believed by its statistics.
#include "weft/prune/norm_after.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "tests/model_files.h"
#include "tests/prune/layer_cases.h"
#include "weft/checkpoint/checkpoint.h"

namespace weft {
namespace {

TEST(NormAfter, IsFoundUnderTheNamesThatPeopleUse) {
  const test::ScratchFolder folder;
  std::vector<test::NamedTensor> tensors;
  const auto add_norm = [&](const std::string& name, int64_t size, bool gamma = true) {
    const auto values = test::gaussian(size);
    tensors.push_back({name + ".running_mean", Dtype::kF32, {size}, values});
    tensors.push_back({name + ".running_var", Dtype::kF32, {size}, values});
    if (gamma) tensors.push_back({name + ".weight", Dtype::kF32, {size}, values});
  };
  for (const std::string name :
       {"layer1.0.bn1", "layer1.0.downsample.1", "norm", "blocks.2.shortcut_norm", "a.shortcut_bn",
        "a.norm2", "conv_norm"}) {
    add_norm(name, 8);
  }
  add_norm("b.bn1", 6);
  add_norm("c.norm1", 6), add_norm("c.bn1", 8, false);
  tensors.push_back({"d.bn1.running_mean", Dtype::kF32, {8}, test::gaussian(8)});
  tensors.push_back({"d.bn1.weight", Dtype::kF32, {8}, test::gaussian(8)});
  test::write_file(folder / "f", tensors);
  const Checkpoint checkpoint = Checkpoint::open(folder / "f");
  const auto found = [&](const std::string& layer) {
    const std::optional<NormAfter> norm = norm_after(checkpoint, layer, 8);
    return norm ? norm->name : "";
  };
  EXPECT_EQ(found("layer1.0.conv1"), "layer1.0.bn1");
  EXPECT_EQ(found("layer1.0.downsample.0"), "layer1.0.downsample.1");
  EXPECT_EQ(found("stem"), "norm");
  EXPECT_EQ(found("blocks.2.shortcut"), "blocks.2.shortcut_norm");
  EXPECT_EQ(found("a.shortcut"), "a.shortcut_bn");
  EXPECT_EQ(found("a.conv2"), "a.norm2");
  EXPECT_EQ(found("conv"), "norm");
  EXPECT_EQ(found("layer1.0.conv2"), "");
  EXPECT_EQ(found("layer1.0.downsample.1"), "");
  EXPECT_EQ(found("fc"), "");
  EXPECT_EQ(found("b.conv1"), "") << "of another size";
  EXPECT_EQ(found("c.conv1"), "c.bn1") << "norm1 is of another size";
  EXPECT_EQ(found("d.conv1"), "") << "no variance";
  EXPECT_TRUE(norm_after(checkpoint, "a.conv2", 8)->gamma.has_value());
  EXPECT_FALSE(norm_after(checkpoint, "c.conv1", 8)->gamma.has_value());
  EXPECT_EQ(norm_after(checkpoint, "a.conv2", 8)->mean.info.name, "a.norm2.running_mean");
  EXPECT_EQ(norm_after(checkpoint, "a.conv2", 8)->variance.info.name, "a.norm2.running_var");
  EXPECT_EQ(norm_after(checkpoint, "a.conv2", 8)->gamma->info.name, "a.norm2.weight");
}

struct Statistics {
  std::vector<double> mean, variance;
};

Statistics statistics_of(const Matrix& w, const Matrix& x) {
  const Matrix y = naive_product(w, turned(x));
  Statistics found;
  for (int64_t r = 0; r < y.rows; ++r) {
    double mean = 0.0, second = 0.0;
    for (int64_t s = 0; s < y.cols; ++s) {
      mean += y.at(r, s) / static_cast<double>(y.cols);
      second += y.at(r, s) * y.at(r, s) / static_cast<double>(y.cols);
    }
    found.mean.push_back(mean);
    found.variance.push_back(second - mean * mean);
  }
  return found;
}

TEST(NormAfter, IsBelievedIfItsStatisticsAreThoseOfTheLayer) {
  const LayerCase layer = draw_layer({16, 32, 1}, 170);
  const Matrix elsewhere = draw_inputs(400, 32, 171);  // other samples of the same inputs
  const auto believed = [&](const Statistics& statistics) {
    return normalises(statistics.mean, statistics.variance, layer.w.values, layer.gram);
  };
  const Statistics own = statistics_of(layer.w, layer.x);
  EXPECT_TRUE(believed(own));
  EXPECT_TRUE(believed(statistics_of(layer.w, elsewhere)));
  // Of another layer, with inputs as they are behind an activation: all positive.
  Matrix positive = draw_inputs(400, 32, 175);
  for (double& value : positive.values) value = std::abs(value) + 1.0;
  EXPECT_FALSE(believed(statistics_of(draw_matrix(Kind::kGaussian, 16, 32, 178), positive)));
  // Of what goes in: the normalisation before the layer.
  Matrix unit(16, 32);
  for (int64_t i = 0; i < 16; ++i) unit.at(i, i) = 1.0;
  EXPECT_FALSE(believed(statistics_of(unit, layer.x)));
  EXPECT_FALSE(believed({std::vector<double>(16, 0.0), std::vector<double>(16, 1.0)}));
  Statistics off = own;
  for (double& variance : off.variance) variance *= 4;
  EXPECT_FALSE(believed(off));
  off = own;
  for (size_t r = 0; r < 16; ++r) off.mean[r] += std::sqrt(own.variance[r]);
  EXPECT_FALSE(believed(off));
  EXPECT_FALSE(believed({std::vector<double>(16, 0.0), std::vector<double>(16, 0.0)}));
}

}  // namespace
}  // namespace weft
