// Distillation: the loss, and runs that learn from another.
#include "weft/train/teacher.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/train/compare.h"

namespace weft::test {
namespace {

// Scores that are its inputs: what the loss sees is what the test gave.
struct Repeats : Model {
  torch::Tensor forward(const torch::Tensor& x) override { return x; }
};

// From the formula, in scalars.
double divergence(const std::vector<double>& t, const std::vector<double>& s, double temperature) {
  const auto softmax = [&](const std::vector<double>& scores) {
    double sum = 0.0;
    std::vector<double> p;
    for (const double one : scores) sum += std::exp(one / temperature);
    for (const double one : scores) p.push_back(std::exp(one / temperature) / sum);
    return p;
  };
  const std::vector<double> p = softmax(t), q = softmax(s);
  double kl = 0.0;
  for (size_t i = 0; i < p.size(); ++i) kl += p[i] * std::log(p[i] / q[i]);
  return kl;
}

TEST(Teacher, MixesItsDivergenceIntoTheLoss) {
  const std::vector<std::vector<double>> taught = {{1.0, -0.5, 2.0}, {0.1, 0.2, -3.0}};
  const std::vector<std::vector<double>> own = {{0.0, 0.5, 1.0}, {-1.0, 2.0, 0.3}};
  const auto tensor = [](const std::vector<std::vector<double>>& rows) {
    torch::Tensor all = torch::empty({2, 3}, torch::kDouble);
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 3; ++j) {
        all[i][j] = rows[static_cast<size_t>(i)][static_cast<size_t>(j)];
      }
    }
    return all;
  };
  const torch::Tensor loss = torch::full({}, 0.7, torch::kDouble);
  for (const double temperature : {1.0, 2.0, 5.0}) {
    for (const double share : {0.0, 0.3, 1.0}) {
      const Teacher teacher(std::make_shared<Repeats>(), share, temperature);
      const double kl = 0.5 * (divergence(taught[0], own[0], temperature) +
                               divergence(taught[1], own[1], temperature));
      const double expected = (1.0 - share) * 0.7 + share * temperature * temperature * kl;
      torch::Tensor scores = tensor(own).requires_grad_(true);
      const torch::Tensor mixed = teacher.mixed(loss, scores, tensor(taught));
      EXPECT_NEAR(mixed.item<double>(), expected, 1e-12) << share << " " << temperature;
      if (share == 0.0) continue;
      mixed.backward();  // against a difference, for one score
      std::vector<std::vector<double>> moved = own;
      moved[1][2] += 1e-6;
      const double next = teacher.mixed(loss, tensor(moved), tensor(taught)).item<double>();
      EXPECT_NEAR(scores.grad()[1][2].item<double>(), (next - expected) / 1e-6, 1e-5);
    }
  }
  const Teacher same(std::make_shared<Repeats>(), 1.0, 2.0);
  EXPECT_NEAR(same.mixed(loss, tensor(own), tensor(own)).item<double>(), 0.0, 1e-12);
  EXPECT_TRUE(contains(message_of([&] {
                         same.mixed(loss, tensor(own), torch::zeros({2, 4}, torch::kDouble));
                       }),
                       "scores of shape [2, 4], not [2, 3]"));
  EXPECT_TRUE(contains(message_of([] { Teacher(std::make_shared<Repeats>(), 2.0, 1.0); }),
                       "teacher-share 2"));
}

// A trained dense network, its run and its weights.
struct Taught {
  explicit Taught(const std::string& model) {
    RunOptions options = small_run(model, "dense");
    options.steps = 60;
    finished_model(folder(), Trainer::begin(folder(), make_parts(options)));
  }
  std::filesystem::path folder() const { return scratch / "teacher"; }
  RunOptions student(const std::string& model, const std::string& recipe) const {
    RunOptions options = tuned_run(model, recipe, (folder() / "model.safetensors").string());
    options.teacher = folder().string();
    return options;
  }
  ScratchFolder scratch;
};

TEST(Teacher, RunsLearnFromItAndGoOnToTheBit) {
  for (const char* model : {"mlp", "cnn"}) {
    const Taught taught(model);
    for (const char* recipe : {"static", "sr-ste", "s-ste"}) {
      const ScratchFolder scratch;
      const RunOptions options = taught.student(model, recipe);
      const std::string whole =
          finished_model(scratch / "whole", Trainer::begin(scratch / "whole", make_parts(options)));
      EXPECT_EQ(interrupted_model(scratch / "pieces", options, {3, 4, 2}), whole) << recipe;
      RunOptions alone = options;
      alone.teacher.clear();
      const std::string without =
          finished_model(scratch / "alone", Trainer::begin(scratch / "alone", make_parts(alone)));
      EXPECT_NE(without, whole) << recipe;
      RunOptions none = options;
      none.teacher_share = 0.0;  // it is loaded, and changes nothing
      EXPECT_EQ(
          finished_model(scratch / "none", Trainer::begin(scratch / "none", make_parts(none))),
          without)
          << recipe;
    }
  }
}

// With the whole share, a network that is the teacher has nothing to learn from it.
TEST(Teacher, ANetworkLearnsNothingFromItself) {
  const Taught taught("mlp");
  const ScratchFolder scratch;
  RunOptions options = taught.student("mlp", "dense");
  options.teacher_share = 1.0;
  Notes notes;
  Trainer trainer = Trainer::begin(scratch / "run", make_parts(options), listening(notes));
  trainer.advance(1);
  ASSERT_EQ(notes.losses.size(), 1u);
  EXPECT_NEAR(notes.losses[0], 0.0, 1e-6);
}

TEST(Teacher, MustBeTheSameWhenARunGoesOn) {
  const Taught taught("mlp");
  const ScratchFolder scratch;
  const RunOptions options = taught.student("mlp", "sr-ste");
  { Trainer::begin(scratch / "run", make_parts(options)).advance(5); }
  const Json saved = read_run_record(scratch / "run")["options"];
  EXPECT_EQ(saved["teacher"], taught.folder().string());
  std::filesystem::rename(taught.folder(), taught.scratch / "moved");
  RunOptions moved = resume_options(scratch / "run");
  EXPECT_TRUE(contains(message_of([&] { make_parts(moved); }), "the teacher: "));
  moved.teacher = (taught.scratch / "moved").string();
  { Trainer::resume(scratch / "run", make_parts(moved)).advance(1); }

  RunOptions other = small_run("mlp", "dense");
  other.seed = 77;
  finished_model(taught.scratch / "other",
                 Trainer::begin(taught.scratch / "other", make_parts(other)));
  moved.teacher = (taught.scratch / "other").string();
  EXPECT_TRUE(contains(message_of([&] { Trainer::resume(scratch / "run", make_parts(moved)); }),
                       "is not the teacher that this run started with"));
}

TEST(Teacher, WhatCannotTeachIsRefused) {
  const Taught taught("mlp");
  const ScratchFolder scratch;
  { Trainer::begin(scratch / "open", make_parts(small_run("mlp", "dense"))); }
  RunOptions options = small_run("mlp");
  options.teacher = (scratch / "open").string();
  EXPECT_TRUE(contains(message_of([&] { make_parts(options); }), "the run has no model yet"));
  RunOptions text = text_run(scratch, "dense");
  finished_model(scratch / "short", Trainer::begin(scratch / "short", make_parts(text)));
  text.teacher = (scratch / "short").string();
  text.context *= 2;
  EXPECT_TRUE(contains(message_of([&] { make_parts(text); }), "fewer than the 24 of this run"));
  text.teacher = taught.folder().string();
  EXPECT_TRUE(contains(message_of([&] { make_parts(text); }), "the teacher: ")) << "of images";
  options.teacher.clear();
  options.teacher_share = 0.9;
  EXPECT_TRUE(contains(message_of([&] { options.check(); }), "no effect without a teacher"));
}

// In a comparison, every run learns from it, dense too.
TEST(Teacher, TeachesEveryRunOfAComparison) {
  const Taught taught("mlp");
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = taught.student("mlp", "sr-ste");
  options.recipes = {"sr-ste"};
  options.patterns = {"2:4"};
  options.seeds = 1;
  ASSERT_TRUE(compare(scratch / "a", options, nullptr, [](double) {}));
  for (const std::string recipe : {"dense", "sr-ste"}) {
    RunOptions alone = options.run;
    alone.recipe = recipe;
    const std::string own =
        finished_model(scratch / recipe, Trainer::begin(scratch / recipe, make_parts(alone)));
    const auto folder =
        scratch / "a" / run_folder_name(recipe, recipe == "dense" ? "" : "2:4", options.run.seed);
    EXPECT_EQ(contents(folder / "model.safetensors"), own) << recipe;
  }
}

}  // namespace
}  // namespace weft::test
