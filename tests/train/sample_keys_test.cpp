// Random numbers of a run: every layer and every seed draws its own, and a seed draws them again.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "weft/torch/linear.h"
#include "weft/torch/sparsify.h"
#include "weft/train/run_setup.h"

namespace weft {
namespace {

struct Drawn {
  std::vector<torch::Tensor> noise;  // dW − its mean, of every layer
  std::vector<std::vector<int64_t>> permutations;
};

// Four layers of the same weights, on the same input and gradient: nothing but their random numbers
// tells them apart. The plan is that of a run with these options.
Drawn drawn_by(const std::string& recipe, int64_t seed) {
  RunOptions options;
  options.recipe = recipe;
  options.pattern = "2:4";
  options.seed = seed;
  options.sparse_ends = true;
  const auto planner = std::make_shared<Planner>(PlanMode::kSparse, "");
  torch::manual_seed(1);
  torch::nn::Sequential model(Linear(32, 48), Linear(32, 48), Linear(32, 48), Linear(32, 48));
  const torch::Tensor weight = torch::randn({48, 32});
  for (const auto& [name, layer] : layers_of(*model)) layer->weight.set_data(weight.clone());
  sparsify(*model, sparsify_config(options, std::nullopt, planner));

  const torch::Tensor x = torch::randn({64, 32}), g = torch::randn({64, 48});
  Drawn drawn;
  for (const auto& [name, layer] : layers_of(*model)) {
    layer->forward(x).backward(g);
    drawn.noise.push_back(layer->weight.grad() - torch::matmul(g.t(), x));
    drawn.permutations.push_back(layer->state().permutation);
  }
  return drawn;
}

double correlation(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a * b).sum() / (a.norm() * b.norm())).item<double>();
}

TEST(SampleKeys, LayersAndSeedsDrawTheirOwnSamples) {
  const Drawn one = drawn_by("s-ste", 1), two = drawn_by("s-ste", 2), again = drawn_by("s-ste", 1);
  std::vector<torch::Tensor> all = one.noise;
  all.insert(all.end(), two.noise.begin(), two.noise.end());
  // Of independent samples it is a random number of deviation 1/√1536, or 0.026.
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_GT(all[i].norm().item<double>(), 1.0);
    for (size_t j = 0; j < i; ++j) EXPECT_LT(std::abs(correlation(all[i], all[j])), 0.15);
  }
  for (size_t i = 0; i < one.noise.size(); ++i) {
    EXPECT_TRUE(torch::equal(one.noise[i], again.noise[i]));
  }
}

// The noise of each micro-batch, all of the same data, of one replica.
std::vector<torch::Tensor> noise_of_replica(const std::string& recipe, int64_t replica) {
  LayerSettings settings;
  settings.recipe = Recipe::parse(recipe);
  settings.planner = std::make_shared<Planner>(PlanMode::kSparse, "");
  settings.replica = replica;
  settings.replicas = 2;
  torch::manual_seed(1);
  Linear layer(32, 48);
  layer->configure(settings);
  const torch::Tensor x = torch::randn({64, 32}), g = torch::randn({64, 48});
  std::vector<torch::Tensor> noise;
  for (int i = 0; i < 3; ++i) {
    layer->zero_grad();
    layer->forward(x).backward(g);
    noise.push_back(layer->weight.grad() - torch::matmul(g.t(), x));
  }
  return noise;
}

TEST(SampleKeys, MicroBatchesOfAllReplicasDrawTheirOwnSamples) {
  std::vector<torch::Tensor> all = noise_of_replica("s-ste", 0);
  for (const torch::Tensor& noise : noise_of_replica("s-ste", 1)) all.push_back(noise);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_LT(std::abs(correlation(all[i], all[j])), 0.15);
  }
}

TEST(SampleKeys, TheSamplerIsThatOfTheRecipe) {
  const torch::Tensor exact = noise_of_replica("s-ste", 0)[0];
  const torch::Tensor two_draw = noise_of_replica("s-ste+gradient=mvue-two-draw", 0)[0];
  EXPECT_FALSE(torch::equal(exact, two_draw));
}

TEST(SampleKeys, LayersAndSeedsSearchTheirOwnPermutations) {
  const std::string recipe = "bi-mask+permutation_search=random";
  const Drawn one = drawn_by(recipe, 1), two = drawn_by(recipe, 2), again = drawn_by(recipe, 1);
  std::vector<std::vector<int64_t>> all = one.permutations;
  all.insert(all.end(), two.permutations.begin(), two.permutations.end());
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << ' ' << j;
  }
  EXPECT_EQ(one.permutations, again.permutations);
}

}  // namespace
}  // namespace weft
