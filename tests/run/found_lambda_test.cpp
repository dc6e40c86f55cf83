// The λ that was found, in options and in records.
#include <gtest/gtest.h>

#include "tests/support.h"
#include "weft/run/found_lambda.h"

namespace weft::test {
namespace {

TEST(FoundLambda, StandsInPlaceOfEveryAuto) {
  RunOptions options;
  options.recipe = "sr-ste";
  EXPECT_FALSE(finds_lambda(options));
  options.rules = {"head=dense", "blocks.*=ste+decay=auto@1:4", "x=transposable+decay=auto"};
  EXPECT_TRUE(finds_lambda(options)) << "by its rules";
  const RunOptions found = with_lambda(options, 0.03);
  EXPECT_EQ(found.recipe, "sr-ste");
  const std::vector<std::string> rules = {"head=dense",
                                          "blocks.*=ste+decay=gradient+lambda=0.03@1:4",
                                          "x=transposable+decay=gradient+lambda=0.03"};
  EXPECT_EQ(found.rules, rules);
  EXPECT_FALSE(finds_lambda(found));
  options = RunOptions();
  options.recipe = "bi-mask+decay=auto";
  EXPECT_TRUE(finds_lambda(options));
  EXPECT_EQ(with_lambda(options, 1e-6).recipe, "bi-mask+decay=gradient+lambda=1e-06");
}

TEST(FoundLambda, IsReadAsItWasWritten) {
  const FoundLambda found{0.003, 0.7512345678901234, 0.0123, 40, {{0.003, 0.7512345678901234}}};
  const Json record = Json::parse(Json{{"lambda", to_json(found)}}.dump(2), "test");
  const auto read = found_lambda(record, "run.json");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->lambda, found.lambda);
  EXPECT_EQ(read->ratio, found.ratio);
  EXPECT_EQ(read->dense_flip_rate, found.dense_flip_rate);
  EXPECT_EQ(read->steps, found.steps);
  ASSERT_EQ(read->trials.size(), 1u);
  EXPECT_EQ(read->trials[0].lambda, 0.003);
  EXPECT_FALSE(found_lambda(Json::object(), "run.json"));
  for (const char* wrong : {R"({"lambda": 3})", R"({"lambda": {"value": "x"}})",
                            R"({"lambda": {"value": -1, "ratio": 1, "dense_flip_rate": 1,
                                           "steps": 1, "trials": []}})"}) {
    const Json broken = Json::parse(wrong, "test");
    const std::string message = message_of([&] { found_lambda(broken, "run.json"); });
    EXPECT_TRUE(message.starts_with("run.json: 'lambda': ")) << message;
  }
}

}  // namespace
}  // namespace weft::test
