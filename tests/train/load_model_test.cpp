// A model that is loaded computes what was trained.
#include "weft/train/load_model.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support.h"
#include "tests/train/runs.h"

namespace weft::test {
namespace {

TEST(LoadModel, EvaluatesAsTheRunDid) {
  for (const std::string recipe : {"s-ste", "transposable", "lbc", "dense"}) {
    const ScratchFolder scratch;
    const RunOptions options = small_run("cnn", recipe);
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
    trainer.advance(options.steps);
    const RunResult result = trainer.finish();
    RunParts parts = load_model(scratch / "run");
    const EvalReport again = evaluate(*parts.model, *parts.source, options.batch, 0);
    EXPECT_EQ(again.loss, result.eval.loss) << recipe;
    EXPECT_EQ(again.accuracy, result.eval.accuracy) << recipe;
  }
  EXPECT_TRUE(contains(message_of([] { load_model("/nowhere"); }), "not the folder of a run"));
}

}  // namespace
}  // namespace weft::test
