// The models of the command line: their outputs, that they learn, and that the decoder reads them.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/decode/gpt_decoder.h"

namespace weft::test {
namespace {

TEST(Models, GiveScoresOfEveryClassAndLearn) {
  for (const std::string model : {"mlp", "cnn", "resnet18", "vit"}) {
    const RunParts parts = make_parts(small_run(model, "dense"));
    const std::vector<int64_t> samples = {0, 1, 2};
    const Batch batch = parts.source->train_batch(samples, 0);
    EXPECT_EQ(parts.model->forward(batch.inputs).sizes(), (std::vector<int64_t>{3, 16})) << model;
    RunOptions options = small_run(model, "dense");
    options.steps = 60;
    options.batch = 32;
    options.checkpoint_every = 0;
    const ScratchFolder scratch;
    Notes notes;
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options), listening(notes));
    trainer.advance(60);
    EXPECT_LT(notes.losses.back(), 0.9 * notes.losses.front()) << model;
  }
}

TEST(Models, SizesThatDoNotGoTogetherAreRefused) {
  RunOptions options = small_run("vit");
  options.patch = 5;
  EXPECT_TRUE(contains(message_of([&] { make_parts(options); }), "patches of 5x5"));
  options = small_run("vit");
  options.heads = 3;
  EXPECT_TRUE(contains(message_of([&] { make_parts(options); }), "3 heads"));
}

TEST(Models, TheDecoderReadsWhatTheTrainerWrites) {
  for (const std::string recipe : {"dense", "sr-ste", "s-ste"}) {
    const ScratchFolder scratch;
    RunOptions options = text_run(scratch, recipe);
    options.exports = "packed";
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
    trainer.advance(options.steps);
    trainer.finish();
    const auto packed = scratch / "run" / "packed.safetensors";
    EXPECT_EQ(std::filesystem::exists(packed), recipe != "dense");
    const Checkpoint checkpoint =
        Checkpoint::open(recipe == "dense" ? scratch / "run" / "model.safetensors" : packed);
    GptDecoder decoder(checkpoint, options.heads);
    const std::string text = "line 7 of";
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    const auto logits = decoder.take({bytes, text.size()});
    const torch::NoGradGuard no_grad;
    torch::Tensor x = torch::empty({1, static_cast<int64_t>(text.size())}, torch::kLong);
    for (size_t i = 0; i < text.size(); ++i) x.data_ptr<int64_t>()[i] = bytes[i];
    const torch::Tensor expected = trainer.model().forward(x)[0][-1];
    for (int64_t i = 0; i < 256; ++i) {
      EXPECT_NEAR(logits[static_cast<size_t>(i)], expected[i].item<float>(), 1e-4) << recipe;
    }
  }
}

}  // namespace
}  // namespace weft::test
