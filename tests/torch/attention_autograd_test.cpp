// Attention under autograd; attention_test.cpp has the kernels.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/layers.h"
#include "tests/support.h"
#include "weft/torch/attention.h"

namespace weft {
namespace {

using test::contains;
using test::difference;
using test::message_of;

struct AttentionRun {
  torch::Tensor out, gradient;
};

AttentionRun run_attention(const torch::Tensor& qkv, const torch::Tensor& g, bool causal) {
  torch::Tensor x = qkv.detach().clone().requires_grad_(true);
  const torch::Tensor out = attention(x, 3, causal);
  out.backward(g.to(out.scalar_type()));
  return {out.detach(), x.grad()};
}

TEST(AttentionAutograd, KernelsAgreeWithTorchInDouble) {
  for (const bool causal : {false, true}) {
    for (const int64_t tokens : {1, 7, 64, 130}) {
      SCOPED_TRACE(fmt::format("{} tokens, {}", tokens, causal ? "causal" : "full"));
      torch::manual_seed(1);
      const torch::Tensor qkv = torch::randn({2, tokens, 3 * 3 * 8});
      const torch::Tensor g = torch::randn({2, tokens, 3 * 8});
      const AttentionRun fast = run_attention(qkv, g, causal);
      const AttentionRun exact = run_attention(qkv.to(torch::kDouble), g, causal);
      ASSERT_EQ(fast.out.scalar_type(), torch::kFloat);
      EXPECT_LT(difference(fast.out, exact.out), 5e-6);
      EXPECT_LT(difference(fast.gradient, exact.gradient), 5e-6);
    }
  }
}

// L = Σ r ∘ out, by central differences.
TEST(AttentionAutograd, DoubleAgreesWithFiniteDifferences) {
  for (const bool causal : {false, true}) {
    torch::manual_seed(2);
    const torch::Tensor qkv = torch::randn({2, 5, 3 * 3 * 2}, torch::kDouble);
    const torch::Tensor r = torch::randn({2, 5, 3 * 2}, torch::kDouble);
    const torch::Tensor gradient = run_attention(qkv, r, causal).gradient;
    torch::Tensor differences = torch::empty_like(qkv);
    const auto loss = [&](const torch::Tensor& x) {
      return (attention(x, 3, causal) * r).sum().item<double>();
    };
    const double step = 1e-5;
    for (int64_t i = 0; i < qkv.numel(); ++i) {
      torch::Tensor up = qkv.clone(), down = qkv.clone();
      up.data_ptr<double>()[i] += step;
      down.data_ptr<double>()[i] -= step;
      differences.data_ptr<double>()[i] = (loss(up) - loss(down)) / (2 * step);
    }
    EXPECT_LT(difference(gradient, differences), 1e-8) << (causal ? "causal" : "full");
  }
}

TEST(AttentionAutograd, LaterTokensDoNotChangeEarlierOnes) {
  torch::manual_seed(3);
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const torch::Tensor qkv = torch::randn({1, 70, 3 * 6}).to(type);
    torch::Tensor other = qkv.clone();
    other.slice(1, 40).normal_();
    const torch::Tensor a = attention(qkv, 3, true), b = attention(other, 3, true);
    EXPECT_TRUE(torch::equal(a.slice(1, 0, 40), b.slice(1, 0, 40)));
    EXPECT_FALSE(torch::equal(a.slice(1, 40), b.slice(1, 40)));
  }
}

TEST(AttentionAutograd, TakesWhatIsNotContiguousAndWhatIsEmpty) {
  torch::manual_seed(4);
  const torch::Tensor turned = torch::randn({9, 2, 18}).transpose(0, 1);
  torch::Tensor x = turned.detach().requires_grad_(true);
  const torch::Tensor g = torch::randn({2, 6, 9}).transpose(1, 2);
  attention(x, 3, true).backward(g);
  const AttentionRun straight = run_attention(turned.contiguous(), g.contiguous(), true);
  EXPECT_TRUE(torch::equal(x.grad(), straight.gradient));
  EXPECT_EQ(attention(torch::empty({2, 0, 18}), 3, true).sizes(), torch::IntArrayRef({2, 0, 6}));
  EXPECT_EQ(attention(torch::empty({0, 4, 18}), 3, true).sizes(), torch::IntArrayRef({0, 4, 6}));
}

TEST(AttentionAutograd, RefusesWrongArguments) {
  const auto refusal = [](const torch::Tensor& qkv, int64_t heads) {
    return message_of([&] { attention(qkv, heads, true); });
  };
  EXPECT_TRUE(contains(refusal(torch::zeros({4, 18}), 3), "Float [4, 18]"));
  EXPECT_TRUE(contains(refusal(torch::zeros({1, 4, 18}, torch::kLong), 3), "Long"));
  EXPECT_TRUE(contains(refusal(torch::Tensor(), 3), "undefined"));
  EXPECT_TRUE(contains(refusal(torch::zeros({1, 4, 18}), 4), "rows of 18 for 4 heads"));
  EXPECT_TRUE(contains(refusal(torch::zeros({1, 4, 18}), 0), "for 0 heads"));
  EXPECT_TRUE(contains(refusal(torch::zeros({1, 4, 0}), 1), "rows of 0"));

  const torch::Tensor x = torch::randn({1, 4, 18}).requires_grad_(true);
  const torch::Tensor out = attention(x, 3, true);
  EXPECT_TRUE(contains(message_of([&] {
                         torch::autograd::grad({out.sum()}, {x}, {}, /*retain_graph=*/true,
                                               /*create_graph=*/true);
                       }),
                       "second derivatives of attention"));
}

}  // namespace
}  // namespace weft
