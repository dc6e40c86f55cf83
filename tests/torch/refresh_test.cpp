// When masks, permutations, row orders and phases change: before a training pass, and never under
// an evaluation.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>

#include "tests/layers.h"
#include "tests/support.h"
#include "weft/mask/row_order.h"
#include "weft/mask/solver.h"
#include "weft/mask/verify.h"
#include "weft/recipe/schedule.h"
#include "weft/torch/sparsify.h"

namespace weft {
namespace {

using test::contains;
using test::Kind;
using test::make_input;
using test::message_of;
using test::same_bits;
using test::settings_of;
using test::Training;

constexpr int64_t kRefreshSteps = 12;

struct Refreshed {
  std::string recipe, pattern;
  int64_t interval;
};

// Every recipe of the table by its own schedule, and with everything that can come rarely coming
// every few steps.
std::vector<Refreshed> refreshed_recipes() {
  std::vector<Refreshed> all;
  for (const Recipe& recipe : recipes()) all.push_back({recipe.name, "2:4", 1});
  for (const Refreshed& more : std::vector<Refreshed>{
           {"ste+mask_every=4", "2:4", 4},
           {"sr-ste+mask_every=3", "2:4x2", 3},
           {"transposable+mask_every=4", "2:4", 4},
           {"transposable+mask_every=3+solver=greedy-keep", "4:8", 3},
           {"t-sr-ste+mask_every=5", "2:4", 5},  // the dense tail begins at 10, with a mask due
           {"t-sr-ste+mask_every=4+dense_head=0.25", "2:4x2", 4},
           {"bi-mask+permutation_every=4", "2:4", 4},
           {"bi-mask+permutation_every=3+mask_every=2", "1:4", 6},
           {"s-ste+backward=bi-mask+permutation_every=4", "2:4", 4},
           {"sr-ste+order_every=4+order_end=1", "2:4x2", 4},
           {"transposable+order_every=4+order_end=1+mask_every=2", "2:4x2", 4},
           {"s-ste+order_every=3+order_end=1", "2:4x2", 3},
           {"static+forward=transposable", "2:4", 6},
           {"static+order_every=1", "2:4x2", 6},
           {"lbc+dense_head=0.25+removal_end=0.75", "2:4", 3},
       }) {
    all.push_back(more);
  }
  return all;
}

struct Snapshot {
  Mask forward, backward, alive;
  std::vector<int64_t> permutation, row_order;

  explicit Snapshot(const LayerState& state)
      : forward(state.forward),
        backward(state.backward),
        alive(state.alive),
        permutation(state.permutation),
        row_order(state.row_order) {}
  bool operator==(const Snapshot&) const = default;
};

torch::Tensor evaluated(LayerModule& layer, Kind kind) {
  const torch::NoGradGuard no_grad;
  layer.eval();
  const torch::Tensor y = layer.forward(make_input(kind, 77).to(layer.weight.scalar_type()));
  layer.train();
  return y;
}

bool mask_is_rare(const Recipe& recipe, const Pattern& pattern) {
  return recipe.forward->scores == nullptr && mask_interval(recipe, pattern) != 1;
}

// The planted comparison: an evaluation after any number of steps computes with the mask of the
// last training pass, on the weights as they are; with a mask of these weights, by the order of
// that pass, where masks are found at every step.
TEST(Refresh, AnEvaluationUsesWhatWasTrained) {
  for (const Refreshed& of : refreshed_recipes()) {
    SCOPED_TRACE(of.recipe + " " + of.pattern);
    Training run(Kind::kLinear, settings_of(of.recipe, of.pattern));
    const Recipe recipe = Recipe::parse(of.recipe);
    const Pattern pattern = Pattern::parse(of.pattern);
    for (int64_t step = 1; step <= kRefreshSteps; ++step) {
      run.optimizer.zero_grad();
      run.pass(0, 1.0);
      const Snapshot trained(run.layer->state());
      weft::step(*run.layer, run.optimizer);
      run.resume_at(static_cast<int>(step));
      const LayerState& state = run.layer->state();
      EXPECT_EQ(state.sparse(), trained.forward.rows() > 0) << "the phase, after " << step;
      EXPECT_EQ(state.row_order, trained.row_order) << step;
      EXPECT_EQ(state.permutation, trained.permutation) << step;
      if (!state.sparse()) {
        EXPECT_TRUE(same_bits(run.layer->effective_weight(), run.layer->weight.detach()));
        continue;
      }
      if (recipe.forward->scores != nullptr) continue;  // its removal follows the scores
      const Mask mask = mask_is_rare(recipe, pattern)
                            ? trained.forward
                            : find_mask(recipe.mask_solver(), run.layer->weight.data_ptr<float>(),
                                        run.layer->weight_shape(), pattern,
                                        std::span<const int64_t>(trained.row_order));
      EXPECT_EQ(state.forward, mask) << step;
      if (recipe.forward->values != nullptr || recipe.fp8) continue;
      const torch::NoGradGuard no_grad;
      torch::Tensor expected = run.layer->weight.detach().clone();
      for (int64_t r = 0; r < mask.rows(); ++r) {
        for (int64_t c = 0; c < mask.cols(); ++c) {
          if (!mask.at(r, c)) expected[r][c] = 0.0;
        }
      }
      ASSERT_TRUE(same_bits(run.layer->effective_weight(), expected)) << step;
      const torch::Tensor y =
          torch::matmul(make_input(Kind::kLinear, 77), expected.t()) + run.layer->bias;
      EXPECT_LT(test::difference(evaluated(*run.layer, Kind::kLinear), y), 1e-5) << step;
    }
  }
}

// A mask that stays the same would pass the test above.
TEST(Refresh, HappensBeforeTheNextTrainingPass) {
  for (const Refreshed& of : refreshed_recipes()) {
    SCOPED_TRACE(of.recipe + " " + of.pattern);
    const Recipe recipe = Recipe::parse(of.recipe);
    if (of.interval == 1 || recipe.schedule.dense_head > 0 || recipe.has_fixed_mask()) continue;
    Training run(Kind::kLinear, settings_of(of.recipe, of.pattern), 0.2);
    for (int64_t step = 0; step < of.interval; ++step) run.step();
    const Snapshot stored(run.layer->state());
    run.pass(0, 0.5);
    const Snapshot refreshed(run.layer->state());
    EXPECT_FALSE(refreshed == stored);
    run.pass(1, 0.5);  // another micro-batch
    EXPECT_TRUE(Snapshot(run.layer->state()) == refreshed);
  }
}

TEST(Refresh, EvaluationsDoNotTouchARun) {
  enum { kUsual, kNoGradOnly, kEvalOnly, kExport };
  for (const Refreshed& of : refreshed_recipes()) {
    for (const int form : {kUsual, kNoGradOnly, kEvalOnly, kExport}) {
      SCOPED_TRACE(fmt::format("{} {} form {}", of.recipe, of.pattern, form));
      // A pass with gradients counts as one of those that draw a sample each.
      if (form == kEvalOnly && Recipe::parse(of.recipe).samples_gradient()) continue;
      Training alone(Kind::kLinear, settings_of(of.recipe, of.pattern));
      Training watched(Kind::kLinear, settings_of(of.recipe, of.pattern));
      const auto look = [&] {
        LayerModule& layer = *watched.layer;
        const torch::Tensor x = make_input(Kind::kLinear, 77);
        if (form == kUsual) evaluated(layer, Kind::kLinear);
        if (form == kExport) layer.effective_weight();
        if (form == kNoGradOnly) {
          const torch::NoGradGuard no_grad;
          layer.forward(x);
        }
        if (form == kEvalOnly) {
          layer.eval();
          layer.forward(x);
          layer.train();
        }
      };
      for (int64_t step = 0; step < kRefreshSteps; ++step) {
        look();
        const Snapshot before(watched.layer->state());
        look();
        EXPECT_TRUE(Snapshot(watched.layer->state()) == before) << step;
        alone.step(2);
        watched.optimizer.zero_grad();
        watched.pass(0, 0.5);
        look();  // between micro-batches
        watched.pass(1, 0.5);
        weft::step(*watched.layer, watched.optimizer);
        watched.resume_at(static_cast<int>(step) + 1);
      }
      EXPECT_TRUE(same_bits(alone.layer->weight, watched.layer->weight));
      EXPECT_TRUE(Snapshot(alone.layer->state()) == Snapshot(watched.layer->state()));
    }
  }
}

TEST(Refresh, ARunSavedWhereOneIsDueContinuesToTheBit) {
  for (const Refreshed& of : refreshed_recipes()) {
    for (const int64_t saved_at : {of.interval, 2 * of.interval, kRefreshSteps - 2}) {
      if (saved_at >= kRefreshSteps) continue;
      for (const bool evaluates : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} at {}", of.recipe, of.pattern, saved_at));
        LayerSettings settings = settings_of(of.recipe, of.pattern);
        settings.telemetry = true;
        Training whole(Kind::kLinear, settings);
        std::stringstream model, optimizer;
        std::vector<int64_t> flips;
        for (int64_t step = 0; step < kRefreshSteps; ++step) {
          if (step == saved_at) {
            if (evaluates) evaluated(*whole.layer, Kind::kLinear);
            torch::save(whole.layer, model);
            torch::save(whole.optimizer, optimizer);
          }
          whole.step();
          flips.push_back(whole.layer->telemetry().changed_bits);
        }
        Training resumed(Kind::kLinear, settings);
        torch::load(resumed.layer, model);
        torch::load(resumed.optimizer, optimizer);
        resumed.resume_at(static_cast<int>(saved_at));
        if (evaluates) evaluated(*resumed.layer, Kind::kLinear);
        for (int64_t step = saved_at; step < kRefreshSteps; ++step) {
          resumed.step();
          EXPECT_EQ(resumed.layer->telemetry().changed_bits, flips[static_cast<size_t>(step)]);
        }
        ASSERT_TRUE(same_bits(whole.layer->weight, resumed.layer->weight));
        ASSERT_TRUE(Snapshot(whole.layer->state()) == Snapshot(resumed.layer->state()));
      }
    }
  }
}

// At the step where a phase begins an evaluation shows the one before: nobody has trained the
// other.
TEST(Refresh, PhasesBeginWithATrainingPass) {
  Training head(Kind::kLinear, settings_of("static", "2:4"));  // half of 12 steps
  for (int step = 0; step < 6; ++step) head.step();
  EXPECT_TRUE(same_bits(head.layer->effective_weight(), head.layer->weight.detach()));
  head.pass(0, 1.0);
  EXPECT_TRUE(head.layer->state().sparse());
  EXPECT_EQ(head.layer->effective_weight().ne(0).sum().item<int64_t>(), 136 * 36 / 2);

  Training tail(Kind::kLinear, settings_of("t-sr-ste", "2:4"));  // two of 12 steps
  for (int step = 0; step < 10; ++step) tail.step();
  EXPECT_EQ(tail.layer->effective_weight().ne(0).sum().item<int64_t>(), 136 * 36 / 2);
  tail.pass(0, 1.0);
  EXPECT_FALSE(tail.layer->state().sparse());

  LayerSettings one = settings_of("static", "2:4");  // whose dense half is the whole run
  one.total_steps = 1;
  Training short_run(Kind::kLinear, one);
  short_run.step();
  EXPECT_FALSE(short_run.layer->state().sparse());
}

// A module that is left in evaluation mode, and gradients made by hand: what is due comes with the
// step, and not never.
TEST(Refresh, StepsWithoutATrainingPassMakeUpForIt) {
  for (const bool by_hand : {false, true}) {
    Training run(Kind::kLinear, settings_of("ste+mask_every=4+dense_head=0.25", "2:4"), 0.2);
    if (!by_hand) run.layer->eval();
    std::vector<Mask> masks;
    for (int step = 0; step < 12; ++step) {
      run.optimizer.zero_grad();
      if (by_hand) {
        torch::manual_seed(static_cast<uint64_t>(step));
        run.layer->weight.mutable_grad() = torch::randn_like(run.layer->weight);
      } else {
        run.pass(0, 1.0);
      }
      weft::step(*run.layer, run.optimizer);
      masks.push_back(run.layer->state().forward);
    }
    EXPECT_EQ(masks[1].rows(), 0);
    EXPECT_EQ(masks[2].rows(), 136);  // after three steps
    EXPECT_EQ(masks[2].density(), 0.5);
    EXPECT_NE(masks[3], masks[2]);
    EXPECT_EQ(masks[6], masks[3]);
    EXPECT_NE(masks[7], masks[6]);
  }
}

TEST(Refresh, FlipsAreCountedInTheStepThatTrainsThem) {
  LayerSettings settings = settings_of("ste+mask_every=4", "2:4");
  settings.telemetry = true;
  Training run(Kind::kLinear, settings, 0.2);
  for (int step = 1; step <= 9; ++step) {
    const Mask before = run.layer->state().forward;
    run.step();
    const int64_t flips = run.layer->telemetry().changed_bits;
    if (step == 5 || step == 9) {
      EXPECT_EQ(flips, Mask::differing(before, run.layer->state().forward));
      EXPECT_GT(flips, 0);
    } else {
      EXPECT_EQ(flips, 0) << step;
    }
  }
}

// ─── losses ───

// Two layers learn a teacher under one recipe. The loss of an evaluation after every step, and what
// the training pass of the next step saw.
struct LossCurve {
  std::vector<double> evaluated, trained;  // after, in step i
};

LossCurve loss_curve(const std::string& recipe, const std::string& pattern, int64_t steps) {
  torch::manual_seed(21);
  const torch::Tensor x = torch::randn({64, 16});
  const torch::Tensor y = torch::matmul(torch::tanh(torch::matmul(x, torch::randn({16, 32}) / 4.0)),
                                        torch::randn({32, 8}) / 4.0);
  torch::nn::Sequential student(Linear(16, 32), torch::nn::Tanh(), Linear(32, 8));
  LayerSettings settings = settings_of(recipe, pattern);
  settings.total_steps = steps;
  settings.number = 0;
  for (auto& [name, layer] : layers_of(*student)) {
    layer->configure(settings);
    ++settings.number;
  }
  torch::optim::AdamW optimizer(student->parameters(), torch::optim::AdamWOptions(0.003));
  LossCurve curve;
  const auto evaluate = [&] {
    const torch::NoGradGuard no_grad;
    student->eval();
    curve.evaluated.push_back(torch::mse_loss(student->forward(x), y).item<double>());
    student->train();
  };
  evaluate();
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(student->forward(x), y);
    curve.trained.push_back(loss.item<double>());
    loss.backward();
    weft::step(*student, optimizer);
    evaluate();
  }
  return curve;
}

// Around every multiple of the interval. A step of this size, and the masks that move with every
// step, change the loss by up to a fifth; a mask that nobody has trained, by more than half. One
// step later the loss is what the training pass saw that found the mask, and a step better.
TEST(Refresh, NoLossJumpsWhereAMaskIsDue) {
  std::vector<Refreshed> cases;
  for (const Recipe& recipe : recipes()) {
    for (const char* text : {"2:4", "4:8"}) {
      const Pattern pattern = Pattern::parse(text);
      const bool rare = mask_is_rare(recipe, pattern) && mask_interval(recipe, pattern) > 0;
      cases.push_back({recipe.name, text, rare ? mask_interval(recipe, pattern) : 40});
    }
  }
  cases.push_back({"transposable+mask_every=40", "2:4", 40});
  cases.push_back({"t-sr-ste+mask_every=40", "2:4", 40});
  cases.push_back({"sr-ste+mask_every=40", "2:4", 40});
  cases.push_back({"sr-ste+order_every=40+order_end=1", "2:4x2", 40});
  for (const Refreshed& of : cases) {
    const int64_t steps = 3 * of.interval + 1;
    const LossCurve curve = loss_curve(of.recipe, of.pattern, steps);
    for (int64_t at = of.interval; at < steps; at += of.interval) {
      const auto i = static_cast<size_t>(at);
      EXPECT_LT(curve.evaluated[i], 1.25 * curve.evaluated[i - 1]) << of.recipe << " after " << at;
      EXPECT_LT(curve.evaluated[i + 1], 1.25 * curve.trained[i])
          << of.recipe << " after " << at + 1;
    }
  }
}

// ─── scores ───

TEST(Lbc, AnOptimizerMadeBeforeSparsifyIsRefused) {
  const auto make_model = [] {
    torch::manual_seed(3);
    return torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::ReLU(),
                                 torch::nn::Linear(16, 16), torch::nn::ReLU(),
                                 torch::nn::Linear(16, 4));
  };
  SparsifyConfig config;
  config.recipe = "lbc";
  config.total_steps = 6;
  const auto take_step = [](torch::nn::Sequential& model, torch::optim::Optimizer& optimizer) {
    optimizer.zero_grad();
    model->forward(torch::ones({2, 8})).pow(2).sum().backward();
    weft::step(*model, optimizer);
  };
  torch::nn::Sequential model = make_model();
  torch::optim::SGD early(model->parameters(), torch::optim::SGDOptions(0.01));
  sparsify(*model, config);
  const torch::Tensor before = model->parameters()[0].detach().clone();
  const std::string message = message_of([&] { take_step(model, early); });
  EXPECT_TRUE(contains(message,
                       "2: the optimiser has the weights but not the scores of 'lbc': "
                       "create it after sparsify"))
      << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_TRUE(same_bits(model->parameters()[0], before)) << "nothing has moved";
  for (const auto& [name, layer] : layers_of(*model)) EXPECT_EQ(layer->state().step, 0);

  torch::optim::SGD late(model->parameters(), torch::optim::SGDOptions(0.01));
  for (int step = 0; step < 4; ++step) take_step(model, late);
  // The removal has ended after three: the scores are frozen, and an optimiser without them will
  // do.
  std::vector<torch::Tensor> weights;
  for (const auto& parameter : model->named_parameters()) {
    if (!contains(parameter.key(), "scores")) weights.push_back(parameter.value());
  }
  torch::optim::SGD rest(weights, torch::optim::SGDOptions(0.01));
  EXPECT_NO_THROW(take_step(model, rest));

  // A layer that an optimiser leaves alone on purpose.
  torch::nn::Sequential other = make_model();
  sparsify(*other, config);
  torch::optim::SGD head({other->named_parameters()["4.weight"]}, torch::optim::SGDOptions(0.01));
  EXPECT_NO_THROW(take_step(other, head));
  // Learning the recipe again makes new scores.
  torch::optim::SGD of_first(other->parameters(), torch::optim::SGDOptions(0.01));
  sparsify(*other, config);
  EXPECT_TRUE(contains(message_of([&] { take_step(other, of_first); }), "not the scores"));
}

// ─── transposable masks, found once or by other solvers ───

TEST(TransposableMasks, OfEverySolverTrainAndKeepTheirPattern) {
  for (const Solver& solver : solvers()) {
    if (!solver.transposable) continue;
    for (const char* recipe : {"transposable+mask_every=2", "t-sr-ste+mask_every=1+dense_tail=0",
                               "static+forward=transposable+dense_head=0"}) {
      for (const char* text : {"2:4", "1:4", "4:8", "2:4x2"}) {
        for (const Kind kind : {Kind::kLinear, Kind::kConv}) {
          const std::string name = fmt::format("{}+solver={}", recipe, solver.name);
          SCOPED_TRACE(name + " " + text);
          LayerSettings settings = settings_of(name, text);
          settings.telemetry = true;
          LayerSettings plain = settings;
          plain.force_plain = true;
          Training a(kind, settings), b(kind, plain);
          const WeightShape shape = a.layer->weight_shape();
          const Pattern pattern = Pattern::parse(text);
          for (int step = 0; step < 4; ++step) {
            a.step();
            b.step();
            const Mask& mask = a.layer->state().forward;
            ASSERT_EQ(count_groups_in(mask, shape, pattern).violations, 0);
            ASSERT_EQ(count_groups_out(mask, shape, pattern).violations, 0);
          }
          ASSERT_LT(test::difference(a.layer->weight, b.layer->weight), 2e-4);
          ASSERT_LT(test::difference(a.x.grad(), b.x.grad()), 2e-4);
          const LayerTelemetry t = a.layer->telemetry();
          EXPECT_EQ(t.forward_density, a.layer->state().forward.density());
          EXPECT_LE(t.forward_density,
                    pattern.keep() / static_cast<double>(pattern.group()) + 0.02);
          EXPECT_GT(t.retained, t.forward_density);
        }
      }
    }
  }
}

TEST(TransposableMasks, AreThoseOfTheSolver) {
  for (const Solver& solver : solvers()) {
    if (!solver.transposable) continue;
    Training run(Kind::kLinear,
                 settings_of(fmt::format("transposable+solver={}", solver.name), "2:4"));
    run.layer->effective_weight();
    EXPECT_EQ(run.layer->state().forward, find_mask(solver, run.layer->weight.data_ptr<float>(),
                                                    run.layer->weight_shape(), Pattern(2, 4)))
        << solver.name;
  }
  Training greedy(Kind::kLinear, settings_of("transposable+solver=greedy-keep", "2:4"));
  greedy.step();
  EXPECT_LT(greedy.layer->state().forward.density(), 0.5) << "a mask that is not full was tested";
  std::stringstream stream;
  torch::save(greedy.layer, stream);
  Training exact(Kind::kLinear, settings_of("transposable", "2:4"));
  EXPECT_TRUE(contains(message_of([&] { torch::load(exact.layer, stream); }), "another recipe"));
}

// Found once, from the weights with which sparse training begins.
TEST(TransposableMasks, CanBeFixed) {
  for (const Kind kind : {Kind::kLinear, Kind::kConv}) {
    Training run(kind, settings_of("static+forward=transposable", "2:4"));
    for (int step = 0; step < 6; ++step) {
      run.step();
      EXPECT_FALSE(run.layer->state().sparse()) << step;
    }
    const torch::Tensor first = run.layer->weight.detach().clone();
    const Mask expected = find_mask(solver("exact"), first.data_ptr<float>(),
                                    run.layer->weight_shape(), Pattern(2, 4));
    for (int step = 6; step < 12; ++step) {
      run.step();
      EXPECT_EQ(run.layer->state().forward, expected) << step;
    }
  }
}

// What is zero stays zero, and tiles that obey are left alone: the ring of three leaves no place
// for a fourth row, so no full mask holds it.
TEST(TransposableMasks, OfWeightsThatObeyKeepThemAll) {
  for (const char* text : {"2:4", "2:4x2"}) {
    Training run(Kind::kLinear, settings_of("static+forward=transposable+dense_head=0", text));
    torch::Tensor tile = torch::zeros({4, 4});
    for (int64_t i = 0; i < 3; ++i) {
      tile[i][i] = 1.0;
      tile[i][(i + 1) % 3] = 1.0;
    }
    {
      const torch::NoGradGuard no_grad;
      run.layer->weight.mul_(tile.repeat({34, 9}));
      run.layer->weight.slice(0, 0, 8).slice(1, 0, 8).fill_(0.5);  // and one that does not
      run.layer->weight[1][1] = 0.0;
      run.layer->weight.slice(0, 40, 41).slice(1, 20, 21).fill_(0.0);
    }
    const torch::Tensor before = run.layer->weight.detach().clone();
    const torch::Tensor effective = run.layer->effective_weight();
    EXPECT_TRUE(same_bits(effective.slice(0, 8), before.slice(0, 8))) << text;
    EXPECT_TRUE(same_bits(effective.slice(1, 8), before.slice(1, 8))) << text;
    EXPECT_EQ(effective[1][1].item<float>(), 0.0f);
    EXPECT_EQ(count_groups_out(run.layer->state().forward, run.layer->weight_shape(),
                               Pattern::parse(text))
                  .violations,
              0);
    LayerSettings plain = settings_of("static+forward=transposable+dense_head=0", text);
    plain.force_plain = true;
    Training other(Kind::kLinear, plain);
    {
      const torch::NoGradGuard no_grad;
      other.layer->weight.copy_(before);
    }
    for (int step = 0; step < 5; ++step) {
      run.step();
      other.step();
    }
    EXPECT_LT(test::difference(run.layer->weight, other.layer->weight), 2e-4);
    EXPECT_LT(test::difference(run.x.grad(), other.x.grad()), 2e-4);
    EXPECT_TRUE(torch::equal(run.layer->effective_weight().eq(0), effective.eq(0)));
  }
}

}  // namespace
}  // namespace weft
