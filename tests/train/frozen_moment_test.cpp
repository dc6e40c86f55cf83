// Runs with moment=frozen (STEP): they go on to the bit, and the moment makes a difference.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support.h"
#include "tests/train/runs.h"

namespace weft::test {
namespace {

constexpr const char* kStep = "ste+dense_head=0.25+moment=frozen";

TEST(FrozenMoment, RunsGoOnToTheBit) {
  for (const char* model : {"mlp", "cnn"}) {
    const ScratchFolder scratch;
    const RunOptions options = small_run(model, kStep);
    const std::string whole =
        finished_model(scratch / "whole", Trainer::begin(scratch / "whole", make_parts(options)));
    // In the head, at its end and in the sparse phase.
    EXPECT_EQ(interrupted_model(scratch / "pieces", options, {2, 4, 5}), whole) << model;
    RunOptions following = options;
    following.recipe = "ste+dense_head=0.25";
    EXPECT_NE(
        finished_model(scratch / "other", Trainer::begin(scratch / "other", make_parts(following))),
        whole);
  }
}

// As long as the head lasts the two are one, and the first sparse step is the first that differs.
TEST(FrozenMoment, BeginsWithTheMasks) {
  const ScratchFolder scratch;
  std::vector<Notes> notes(2);
  int i = 0;
  for (const char* recipe : {kStep, "ste+dense_head=0.25"}) {
    Trainer trainer = Trainer::begin(scratch / recipe, make_parts(small_run("mlp", recipe)),
                                     listening(notes[static_cast<size_t>(i++)]));
    trainer.advance(12);
  }
  for (size_t step = 0; step < 12; ++step) {  // the loss of step 4 is that before its update
    EXPECT_EQ(notes[0].losses[step] == notes[1].losses[step], step <= 3) << step;
  }
}

TEST(FrozenMoment, IsOfAdamAlone) {
  RunOptions options = small_run("mlp", kStep);
  options.optimizer = "sgd";
  EXPECT_TRUE(contains(message_of([&] { options.check(); }), "needs optimizer adamw, not sgd"));
  options.recipe = "ste";
  EXPECT_NO_THROW(options.check());
  options.rules = {std::string("hidden1=") + kStep};
  EXPECT_TRUE(contains(message_of([&] { options.check(); }), "needs optimizer adamw"));
}

}  // namespace
}  // namespace weft::test
