// Tests of the modes that a request may choose: lossy experts, drafted tokens, late calls.
#include "tests/hub/api/api_fixture.h"

#include "hub/draft/forced_draft.h"
#include "hub/draft/ngram_draft.h"
#include "hub/engine/expert_speculator.h"

namespace moex::test {
namespace {

// A speculator that replaces no answer and chooses no expert: the hub requests the router's choice.
struct NoGuesses : ExpertSpeculator {
    void choose(const RouteView&, std::span<std::uint16_t>, std::span<float>) override {}
    bool stand_in(const RouteView&, std::span<float>) override { return false; }
};

// Options of a hub that offers one lossy mode, and says why it does not offer a second mode.
ApiOptions with_ways(NoGuesses& guesses, std::optional<double> excess = std::nullopt) {
    ApiOptions options;
    options.modes = {"early:1"};
    options.find_mode = [&guesses, excess](std::string_view name) -> Result<ExpertMode> {
        if (name == "estimator") return Error{ErrorCode::not_found, "no estimator"};
        if (name != "speculative" && name != "early:1")
            return Error{ErrorCode::invalid_argument, "unknown"};
        return ExpertMode{.name = "early:1", .speculator = &guesses, .perplexity_excess = excess};
    };
    return options;
}

TEST_F(ApiTest, ExpertsAreLossyWhereThatIsAskedForAndOffered) {
    const auto by = [](const char* way) { return Json{{"moex", {{"experts", way}}}}; };
    const auto experts_of = [&](const Json& extra) {
        return ask(chat_path, chat("Hi", extra))->json()["moex"]["experts"];
    };
    const auto offered = [&] {
        return ask(&Api::models, Json::object())->json()["data"][0]["meta"]["experts"];
    };
    const auto why_not = [&](const Json& extra) {
        const auto refused = ask(chat_path, chat("Hi", extra));
        EXPECT_EQ(refused->status(), 400u);
        EXPECT_EQ(refused->json()["error"]["param"], "moex.experts");
        return refused->json()["error"]["message"].get<std::string>();
    };

    make({}, {.no_modes = "--deterministic says so."});
    EXPECT_EQ(offered(), Json::array({"exact"}));
    EXPECT_EQ(experts_of(by("exact")), "exact");
    EXPECT_NE(why_not(by("speculative")).find("--deterministic"), std::string::npos);
    EXPECT_NE(why_not(by("estimator")).find("--deterministic"), std::string::npos);

    NoGuesses guesses;
    ApiOptions options = with_ways(guesses);
    make({}, options);
    EXPECT_EQ(offered(), Json::array({"exact", "speculative", "early:1"}));
    EXPECT_EQ(experts_of(Json::object()), "exact");
    EXPECT_EQ(experts_of(by("speculative")), "early:1");
    EXPECT_EQ(experts_of(by("early:1")), "early:1");
    EXPECT_NE(why_not(by("estimator")).find("no estimator"), std::string::npos);
    EXPECT_NE(why_not(by("fast")).find("/v1/models"), std::string::npos);
    EXPECT_NE(why_not({{"moex", {{"experts", 7}}}}).find("/v1/models"), std::string::npos);

    options.experts = "speculative";
    make({}, options);
    EXPECT_EQ(offered(), Json::array({"speculative", "exact", "early:1"}));
    EXPECT_EQ(experts_of(Json::object()), "early:1");
    EXPECT_EQ(experts_of(by("exact")), "exact");

    // Check the reported loss of perplexity, with and without a measurement.
    const auto cost = [&](const Json& extra) {
        return ask(chat_path, chat("Hi", extra))->json()["moex"]["perplexity_excess"];
    };
    const auto perplexity = [&] {
        return ask(&Api::models, Json::object())->json()["data"][0]["meta"]["experts_perplexity"];
    };
    EXPECT_EQ(cost(by("exact")), 0.0);
    EXPECT_EQ(cost(by("early:1")), nullptr);
    EXPECT_EQ(perplexity(), nullptr);
    options = with_ways(guesses, 0.25);
    options.perplexity = {{"exact", 20}, {"early:1", 25}};
    make({}, options);
    EXPECT_EQ(cost(by("exact")), 0.0);
    EXPECT_EQ(cost(by("early:1")), 0.25);
    EXPECT_EQ(perplexity(), (Json{{"early:1", 25.0}, {"exact", 20.0}}));
    TearDown();  // destroy the engine before the speculator that it uses
}

// The request's number of drafted tokens is checked even if the engine has no source of drafts.
TEST_F(ApiTest, RequestsChooseTheNumberOfDraftedTokens) {
    const auto asked = [&](const Json& speculative, Json moex = Json::object()) {
        moex["speculative"] = speculative;
        return ask(chat_path, chat("Hi", {{"moex", moex}}));
    };
    for (const Json& right : {Json("off"), Json("auto"), Json(1), Json(16), Json()}) {
        const auto answer = asked(right);
        ASSERT_EQ(answer->status(), 200u) << answer->response().body;
        // the engine of this test has no source of drafts
        EXPECT_TRUE(answer->json()["moex"]["speculative"].is_null());
    }
    for (const Json& wrong : {Json(0), Json(17), Json(-1), Json(2.5), Json("4"), Json(true)}) {
        const auto answer = asked(wrong);
        EXPECT_EQ(answer->status(), 400u) << wrong;
        EXPECT_EQ(answer->json()["error"]["param"], "moex.speculative");
        EXPECT_NE(answer->json()["error"]["message"].get<std::string>().find("1 to 16"),
                  std::string::npos);
    }

    NoGuesses guesses;
    ApiOptions options = with_ways(guesses);
    make({}, options);
    EXPECT_EQ(asked(4, {{"experts", "speculative"}})->status(), 400u);
    EXPECT_EQ(asked("off", {{"experts", "speculative"}})->status(), 200u);
    options.drafts = false;
    make({}, options);
    const auto refused = asked(4);
    EXPECT_EQ(refused->status(), 400u);
    EXPECT_NE(refused->response().body.find("--speculative off"), std::string::npos);
    EXPECT_EQ(asked("auto")->status(), 200u);
    TearDown();  // destroy the engine before the speculator that it uses
}

// A prompt that repeats itself gets n-gram drafts, and the reply says how many were right.
TEST_F(ApiTest, RepliesSayHowManyDraftedTokensWereAccepted) {
    NgramDrafts ngrams;
    EngineOptions engine;
    engine.draft_sources = {&ngrams};
    make(engine, {});
    const auto answer = ask(
        chat_path, chat("one two one two one two one two",
                        {{"moex", {{"speculative", 4}}}, {"temperature", 0}, {"max_tokens", 24}}));
    ASSERT_EQ(answer->status(), 200u) << answer->response().body;
    const Json drafts = answer->json()["moex"]["speculative"];
    ASSERT_TRUE(drafts.is_object());
    EXPECT_EQ(drafts["kind"], "ngram");
    std::uint64_t num_drafts = 0, accepted = 0;
    for (std::size_t i = 0; i < drafts["acceptance_histogram"].size(); ++i) {
        const auto count = drafts["acceptance_histogram"][i].get<std::uint64_t>();
        num_drafts += count;
        accepted += i * count;
    }
    ASSERT_GT(num_drafts, 0u);
    EXPECT_NEAR(drafts["mean_acceptance_length"].get<double>(),
                1 + static_cast<double>(accepted) / static_cast<double>(num_drafts), 1e-9);
    EXPECT_LE(drafts["draft_acceptance_rate"].get<double>(), 1.0);
    EXPECT_GE(drafts["tokens_per_step"].get<double>(), 1.0);
    TearDown();  // destroy the engine before the drafts that it uses
}

// An answer with a schema gets the texts that the schema leaves as drafts, and stays as it is.
TEST_F(ApiTest, TheFormOfAnAnswerIsDrafted) {
    ForcedDrafts forms;
    EngineOptions engine;
    engine.draft_sources = {&forms};
    make(engine, {});
    const Json schema = Json::parse(R"({"type": "object", "properties": {
        "city_name": {"type": "string", "maxLength": 6}, "is_capital": {"type": "boolean"}},
        "required": ["city_name", "is_capital"], "additionalProperties": false})");
    const auto answer = [&](const Json& speculative) {
        return ask(chat_path,
                   chat("A city", {{"moex", {{"speculative", speculative}}},
                                   {"max_tokens", 80},
                                   {"seed", 3},
                                   {"response_format",
                                    {{"type", "json_schema"},
                                     {"json_schema", {{"name", "city"}, {"schema", schema}}}}}}))
            ->json();
    };
    const Json plain = answer("off"), drafted = answer(6);
    EXPECT_EQ(drafted["choices"], plain["choices"]);
    const Json drafts = drafted["moex"]["speculative"];
    ASSERT_TRUE(drafts.is_object()) << drafted;
    EXPECT_EQ(drafts["kind"], "grammar");
    EXPECT_GT(drafts["tokens_per_step"].get<double>(), 1.0);
    TearDown();  // destroy the engine before the drafts that it uses
}

TEST_F(ApiTest, LateCallsAreReplacedUpToTheLimitOfTheHub) {
    const auto asked = [&](const Json& moex) {
        return ask(chat_path, chat("Hi", {{"moex", moex}}));
    };
    const auto refusal = [&](const Json& moex, const std::string& param) {
        const auto answer = asked(moex);
        EXPECT_EQ(answer->status(), 400u) << moex;
        EXPECT_EQ(answer->json()["error"]["param"], param) << moex;
        return answer->json()["error"]["message"].get<std::string>();
    };
    EXPECT_NE(refusal({{"late_ms", 50}}, "moex.late_ms").find("--late-calls-max"),
              std::string::npos)
        << "the default";

    NoGuesses guesses;
    ApiOptions options = with_ways(guesses);
    options.late_calls_max = 8;
    make({}, options);
    for (const Json& wrong : {Json(0), Json(-3), Json(2.5), Json("50"), Json(60'001)})
        refusal({{"late_ms", wrong}}, "moex.late_ms");
    refusal({{"late_max", 2}}, "moex.late_max");
    EXPECT_NE(refusal({{"late_ms", 50}, {"late_max", 9}}, "moex.late_max").find("1 to 8"),
              std::string::npos);
    refusal({{"late_ms", 50}, {"late_max", 0}}, "moex.late_max");
    refusal({{"late_ms", 50}, {"experts", "speculative"}}, "moex.late_ms");

    // The hub itself computes the experts, so no call is late.
    for (const Json& right : {Json{{"late_ms", 50}}, Json{{"late_ms", 1}, {"late_max", 8}}}) {
        const auto answer = asked(right);
        ASSERT_EQ(answer->status(), 200u) << answer->response().body;
        EXPECT_EQ(answer->json()["moex"]["replaced"], 0);
        EXPECT_EQ(answer->json()["moex"]["perplexity_excess"], 0.0);
    }
    TearDown();  // destroy the engine before the speculator that it uses
}

}  // namespace
}  // namespace moex::test
