// JSON: what is written is read back, and what is not strictly JSON is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/support.h"
#include "weft/core/json.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

TEST(Json, IsWrittenInTheOrderInWhichItWasMade) {
  const Json document = {{"z", 1},
                         {"a", {1.5, true, nullptr, "\u2713 \"\n"}},
                         {"empty", Json::object()},
                         {"none", Json::array()},
                         {"pair", Json{"a text", "another"}}};
  EXPECT_EQ(document.dump(),
            "{\"z\":1,\"a\":[1.5,true,null,\"\u2713 \\\"\\n\"],\"empty\":{},\"none\":[],"
            "\"pair\":[\"a text\",\"another\"]}");
  EXPECT_EQ((Json{{"a", {1, 2}}, {"b", Json::object()}}.dump(2)),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}");
}

TEST(Json, NumbersAreReadBackAsTheyWere) {
  EXPECT_EQ((Json{INT64_MIN, UINT64_MAX, -1, 0u, 1.0, 0.1, 1e300, std::nan("")}.dump()),
            "[-9223372036854775808,18446744073709551615,-1,0,1.0,0.1,1e+300,null]");
  const Json numbers = Json::parse("[-9223372036854775808,18446744073709551615,0.1]", "text");
  EXPECT_EQ(numbers[0].get<int64_t>(), INT64_MIN);
  EXPECT_EQ(numbers[1].get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(numbers[2].get<double>(), 0.1);
  EXPECT_TRUE(numbers[1].is_number_unsigned());
  EXPECT_FALSE(numbers[0].is_number_unsigned());
}

TEST(Json, EqualsWhatSaysTheSame) {
  EXPECT_EQ(Json::parse(R"({"b": [1, 2.0], "a": null})", "text"),
            (Json{{"b", {1u, 2}}, {"a", nullptr}}));
  EXPECT_FALSE(Json(-1) == Json(UINT64_MAX));
  EXPECT_FALSE(Json(1) == Json(true));
  EXPECT_FALSE(Json("1") == Json(1));
  EXPECT_FALSE(Json(false) == Json(nullptr));
  EXPECT_FALSE(Json(false) == Json(true));
  EXPECT_FALSE((Json{{"a", 1}} == Json{{"b", 1}}));
  EXPECT_FALSE((Json{{"a", 1}} == Json{{"a", 1}, {"b", 1}}));
  EXPECT_FALSE(Json::array() == Json::object());
}

TEST(Json, MembersOfWhatIsReadStandSorted) {
  EXPECT_EQ(Json::parse(R"({"b": {"d": 1, "c": 2}, "a": []})", "text").dump(),
            R"({"a":[],"b":{"c":2,"d":1}})");
}

TEST(Json, WhatIsNotStrictlyJsonIsRefused) {
  const auto refused = [](std::string_view text) {
    return message_of([&] { Json::parse(text, "file"); });
  };
  EXPECT_TRUE(Json::parse_or_null("{").is_null());
  EXPECT_EQ(Json::parse_or_null("[1]"), Json{1});
  EXPECT_EQ(refused(std::string_view("[]\0", 3)), "file: not valid JSON: it has a NUL byte");
  EXPECT_EQ(refused(R"([{"a": 1, "a": 2}])"), "file: name 'a' appears twice");
  EXPECT_EQ(refused(std::string(17, '[') + std::string(17, ']')), "file: nested more than 16 deep");
  EXPECT_EQ(refused(std::string(16, '[') + std::string(16, ']')), "(no Error)");
}

TEST(Json, WhatIsWrongIsSaidInWordsWithThePlace) {
  const auto refused = [](std::string_view text) {
    return message_of([&] { Json::parse(text, "file"); });
  };
  const std::string wrong = "file: not valid JSON: ";
  EXPECT_EQ(refused(""), wrong + "it ends too early, at byte 0");
  EXPECT_EQ(refused("{"), wrong + "it ends too early, at byte 1");
  EXPECT_EQ(refused("[\"abc"), wrong + "it ends too early, at byte 5");
  EXPECT_EQ(refused("[1] 2"), wrong + "'2' is not expected, at byte 4 (line 1, column 5)");
  EXPECT_EQ(refused("[1,\n 2,]"), wrong + "']' is not expected, at byte 7 (line 2, column 4)");
  EXPECT_EQ(refused("[nul]"), wrong + "']' is not expected, at byte 4 (line 1, column 5)");
  EXPECT_EQ(refused("[1e999]"), wrong + "the number 1e999 at byte 5 is too large");
  EXPECT_EQ(refused("\"\xff\""), wrong + "text that is not UTF-8, at byte 1 (line 1, column 2)");
  EXPECT_EQ(refused("[\"\xff\"]"), wrong + "text that is not UTF-8, at byte 2 (line 1, column 3)");
  EXPECT_EQ(refused("{\"a\": é}"), wrong + "'é' is not expected, at byte 6 (line 1, column 7)");
  EXPECT_EQ(refused("\"\xc3\""), wrong + "text that is not UTF-8, at byte 2 (line 1, column 3)");
  EXPECT_EQ(refused("\"a\nb\""), wrong + "a control character, at byte 2 (line 1, column 3)");
}

TEST(Json, TextThatIsNotUtf8IsRefusedOrReplaced) {
  const Json wrong = {{"a\xff", "b\xc3"}};
  EXPECT_TRUE(contains(message_of([&] { wrong.dump(); }), "UTF-8"));
  EXPECT_EQ(wrong.dump(-1, Json::BadText::kReplace), "{\"a\ufffd\":\"b\ufffd\"}");
}

TEST(Json, WrongKindsAreErrors) {
  const Json document = {{"text", "a"}, {"number", 1}};
  EXPECT_TRUE(contains(message_of([&] { document.at("more"); }), "no 'more'"));
  EXPECT_NE(message_of([&] { document["text"].get<int>(); }), "(no Error)");
  EXPECT_NE(message_of([&] { document["number"].get<std::string>(); }), "(no Error)");
  EXPECT_NE(message_of([&] { document["number"].get<bool>(); }), "(no Error)");
  EXPECT_NE(message_of([&] { Json(1).push_back(2); }), "(no Error)");
  EXPECT_NE(message_of([&] { Json(1).append("a", 2); }), "(no Error)");
}

}  // namespace
}  // namespace weft
