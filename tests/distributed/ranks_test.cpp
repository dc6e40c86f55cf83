// The parts of a run on several ranks, from C++: gradients as of one process, and states that differ.
//
// Each rank is this program again, as another process: the tests called DISABLED_ are their bodies.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include "tests/cli/ranks.h"
#include "tests/train/runs.h"
#include "weft/distributed/same_state.h"
#include "weft/torch/tensor_file.h"

extern char** environ;

namespace weft::test {
namespace {

RunOptions run_of(const std::string& recipe) {
  RunOptions options = small_run("mlp", recipe);
  options.width = 32;
  options.batch = 32;
  options.sparse_ends = true;
  options.steps = 6;
  options.clip = 0;
  options.threads = 1;
  return options;
}

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// The gradients of the first step, as the optimiser saw them.
void write_gradients(const std::filesystem::path& path, Trainer& trainer) {
  NamedTensors tensors;
  for (const auto& parameter : trainer.model().named_parameters()) {
    if (parameter.value().grad().defined()) {
      tensors.emplace_back(parameter.key(), parameter.value().grad().contiguous());
    }
  }
  write_tensors(path, tensors, {});
}

class RankBodies : public ::testing::Test {
 protected:
  RankBodies() : ranks_(ProcessGroup::join(*rank_place(), {})) {}
  TrainerSetup setup() const {
    TrainerSetup setup;
    setup.ranks = ranks_;
    return setup;
  }
  std::filesystem::path folder_ = variable("WEFT_TEST_FOLDER");
  std::shared_ptr<ProcessGroup> ranks_;
};

TEST_F(RankBodies, DISABLED_Gradients) {
  Trainer trainer =
      Trainer::begin(folder_ / "run", make_parts(run_of(variable("WEFT_TEST_RECIPE"))), setup());
  trainer.advance(1);
  write_gradients(folder_ / fmt::format("rank{}", ranks_->rank()), trainer);
  ranks_->leave();
}

TEST_F(RankBodies, DISABLED_OtherMask) {
  Trainer trainer = Trainer::begin(folder_ / "run", make_parts(run_of("s-ste")), setup());
  trainer.advance(2);
  if (ranks_->rank() == 1) {  // as a fault of memory would
    const torch::NoGradGuard no_grad;
    for (const auto& [name, layer] : layers_of(trainer.model())) {
      if (name == "hidden1") layer->weight.mul_(-1).add_(0.01), layer->weights_changed();
    }
  }
  EXPECT_EQ(
      message_of([&] { require_same_state(trainer.model(), *ranks_, 2); }),
      "the mask, permutation or scale of 'hidden1' on rank 1 differs from that on rank 0 after "
      "step 2: a host may have a fault, or the model depends on more than its weights and the "
      "seed");
  ranks_->leave();
}

class RanksFromCpp : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_c10d()) GTEST_SKIP() << "built without c10d";
  }
  // Runs a body on so many ranks; all of them must pass.
  void run_body(const std::string& body, int size, const std::string& recipe = "") {
    const int port = free_port();
    std::vector<pid_t> ids;
    for (int rank = 0; rank < size; ++rank) {
      ::setenv("RANK", std::to_string(rank).c_str(), 1);
      ::setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      ::setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
      ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
      ::setenv("WEFT_TEST_FOLDER", scratch_.path().c_str(), 1);
      ::setenv("WEFT_TEST_RECIPE", recipe.c_str(), 1);
      std::vector<std::string> words = {"ranks_test", "--gtest_also_run_disabled_tests",
                                        "--gtest_filter=RankBodies.DISABLED_" + body};
      std::vector<char*> argv;
      for (std::string& word : words) argv.push_back(word.data());
      argv.push_back(nullptr);
      pid_t id = 0;
      ASSERT_EQ(::posix_spawn(&id, "/proc/self/exe", nullptr, nullptr, argv.data(), environ), 0);
      ids.push_back(id);
    }
    ::unsetenv("WORLD_SIZE");
    for (const pid_t id : ids) {
      int status = 0;
      ::waitpid(id, &status, 0);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << body << " " << recipe;
    }
  }
  ScratchFolder scratch_;
};

TEST_F(RanksFromCpp, TheFirstGradientsAreThoseOfOneProcess) {
  for (const char* recipe : {"dense", "static", "t-sr-ste", "bi-mask", "lbc", "s-ste"}) {
    {
      Trainer one = Trainer::begin(scratch_ / "one", make_parts(run_of(recipe)));
      one.advance(1);
      write_gradients(scratch_ / "alone", one);
    }
    run_body("Gradients", 2, recipe);
    const TensorFile expected = read_tensors(scratch_ / "alone");
    const TensorFile ranks[] = {read_tensors(scratch_ / "rank0"), read_tensors(scratch_ / "rank1")};
    for (const auto& [name, gradient] : expected.tensors) {
      const torch::Tensor found = ranks[0].at(name);
      const double error = (found - gradient).norm().item<double>();
      EXPECT_LE(error, 1e-6 * gradient.norm().item<double>()) << recipe << " " << name;
      EXPECT_TRUE(torch::equal(found, ranks[1].at(name))) << recipe << " " << name;
    }
    std::filesystem::remove_all(scratch_ / "one");
    std::filesystem::remove_all(scratch_ / "run");
  }
}

TEST_F(RanksFromCpp, AnotherMaskIsAnErrorThatNamesLayerAndRank) { run_body("OtherMask", 2); }

}  // namespace
}  // namespace weft::test
