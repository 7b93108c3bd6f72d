// The fixture of dialect tests: it sends requests in other dialects, and the same requests in
// OpenAI's dialect for comparison.
#pragma once

#include "tests/hub/api/api_fixture.h"

namespace moex::test {

class DialectTest : public ApiTest {
  protected:
    explicit DialectTest(Dialect dialect) { dialect_ = dialect; }

    // Returns the answer of /v1/chat/completions to the same request.
    Json in_openai(const Json& body) {
        const auto answer = ask(&Api::chat, body);
        EXPECT_EQ(answer->status(), 200u) << answer->response().body;
        return answer->json();
    }
    std::string content_in_openai(const Json& body) {
        return in_openai(body)["choices"][0]["message"]["content"];
    }

    static Json add_parameters() {
        const Json number{{"type", "integer"}, {"maximum", 99}};
        return {{"type", "object"},
                {"properties", {{"a", number}, {"b", number}}},
                {"required", {"a", "b"}},
                {"additionalProperties", false}};
    }
    static Json add_function() { return {{"name", "add"}, {"parameters", add_parameters()}}; }
    static void expect_sum(const Json& arguments) {
        EXPECT_TRUE(arguments["a"].is_number_integer()) << arguments;
        EXPECT_TRUE(arguments["b"].is_number_integer()) << arguments;
        EXPECT_EQ(arguments.size(), 2u);
    }

    const Json words_{{{"role", "user"}, {"content", "Tell me a story"}}};
    const std::string model_name_ = model_.package->name();
};

}  // namespace moex::test
