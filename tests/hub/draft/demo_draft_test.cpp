// Tests drafts on the demo, with the arithmetic that `serve` has by default: answers to held-out
// texts equal those without drafts, and a shadow's drafts are mostly right.
#include <fstream>
#include <future>

#include "hub/commands/open_drafts.h"
#include "hub/engine/engine.h"
#include "hub/model/pack/shadow_writer.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

const std::filesystem::path source_folder = repository();
constexpr std::uint32_t num_requests = 340, answer_tokens = 12;

class DemoDraftTest : public testing::Test {
  protected:
    void SetUp() override {
        auto package = ModelPackage::open(source_folder / "static/models/demo");
        ASSERT_TRUE(package.ok());
        model_.package = *package;
        auto tokenizer = Tokenizer::load(*model_.package->tokenizer_file("tokenizer.json"), "");
        ASSERT_TRUE(tokenizer.ok());
        model_.tokenizer = *tokenizer;
        model_.threads = std::make_unique<ThreadPool>(2);
        auto decoder = Decoder::create(model_.package, *model_.threads,
                                       {.arithmetic = Arithmetic::int8});
        ASSERT_TRUE(decoder.ok());
        model_.decoder = *std::move(decoder);
        model_.local = std::make_unique<LocalExperts>(model_.package, *model_.threads,
                                                      ExpertRounding{}, Arithmetic::int8);
        const auto report = write_shadow(*model_.package, {}, folder_.path() / "int3",
                                         *model_.threads, {});
        ASSERT_TRUE(report.ok());

        std::ifstream in(source_folder / "tests/golden/demo/val_excerpt.txt", std::ios::binary);
        const std::string text((std::istreambuf_iterator<char>(in)), {});
        ids_ = model_.tokenizer->encode(text, SpecialTokens::as_text);
        ASSERT_GT(ids_.size(), 2 * num_requests);
    }

    GenerationRequest request_of(std::uint32_t i) const {
        const std::size_t length = 8 + i % 33, first = i * (ids_.size() - 48) / num_requests;
        GenerationRequest request;
        request.prompt.assign(ids_.begin() + first, ids_.begin() + first + length);
        // Every fourth prompt repeats its beginning, so that the n-gram source has drafts.
        if (i % 4 == 0)
            request.prompt.insert(request.prompt.end(), ids_.begin() + first,
                                  ids_.begin() + first + length / 2);
        request.max_tokens = answer_tokens;
        SamplingOptions& sampling = request.sampling;
        sampling.temperature = i % 5 == 0 ? 0 : i % 3 == 0 ? 1.2 : 0.8;
        sampling.top_p = i % 2 == 0 ? 0.95 : 1;
        sampling.repetition_penalty = i % 7 == 0 ? 1.1 : 1;
        sampling.seed = i;
        return request;
    }

    // Returns the answers to all requests, and adds up their drafts.
    std::vector<std::vector<TokenId>> run(const EngineOptions& options, DraftStats& drafts) {
        std::vector<std::vector<TokenId>> answers(num_requests);
        std::vector<std::promise<GenerationEnd>> ends(num_requests);
        Engine engine(*model_.decoder, *model_.local, options);
        for (std::uint32_t i = 0; i < num_requests; ++i)
            EXPECT_TRUE(
                engine
                    .submit(
                        request_of(i),
                        {.on_token =
                             [&, i](const TokenEvent& event) {
                                 answers[i].push_back(event.token.id);
                             },
                         .on_end = [&, i](const GenerationEnd& end) { ends[i].set_value(end); }})
                    .ok());
        for (auto& end : ends) drafts.add(end.get_future().get().stats.drafts);
        return answers;
    }

    test::TemporaryFolder folder_{"demo-draft"};
    LoadedModel model_;
    std::vector<TokenId> ids_;
};

TEST_F(DemoDraftTest, TextsEqualThoseWithoutDrafts) {
    const EngineOptions plain{
        .sequences_max = 16, .queue_max = num_requests, .kv_dtype = KvDtype::f16};
    DraftStats none;
    const auto wanted = run(plain, none);
    EXPECT_EQ(none.drafts, 0u);

    for (const bool has_shadow : {false, true})
        for (const std::optional<std::uint32_t> tokens :
             {std::optional<std::uint32_t>(), std::optional(4u)}) {
            SCOPED_TRACE(text(has_shadow, " ", tokens.value_or(0)));
            DraftParts parts;
            if (has_shadow) {
                const Status opened = parts.open((folder_.path() / "int3").string(), model_);
                ASSERT_TRUE(opened.ok()) << opened.error().message;
            }
            EngineOptions options = plain;
            options.draft_sources = parts.make_sources(options);
            options.draft_tokens = tokens;
            DraftStats drafts;
            const auto answers = run(options, drafts);
            for (std::uint32_t i = 0; i < num_requests; ++i) ASSERT_EQ(answers[i], wanted[i]) << i;
            if (!tokens) continue;
            EXPECT_GT(drafts.drafts, 50u);
            // an INT3 shadow has 0.85 to 0.9 of its tokens right, each after a right one
            const double length = 1 + static_cast<double>(drafts.accepted_tokens) /
                                          static_cast<double>(drafts.drafts);
            EXPECT_GT(length, has_shadow ? 2.5 : 1.0);
            std::cout << "tokens of a step with a draft: " << length << '\n';
        }
}

TEST_F(DemoDraftTest, AnotherVocabularyIsRefusedWithTheFirstTokenThatDiffers) {
    DraftParts parts;
    const auto report = synth_package(test::tiny_config(), "tiny", 7, folder_.path() / "tiny", {},
                                      *model_.threads, {});
    ASSERT_TRUE(report.ok());
    Status opened = parts.open((folder_.path() / "tiny").string(), model_);
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.error().message.find("tiny has a vocabulary of 256 tokens"), std::string::npos)
        << opened.error().message;

    // the same package with two tokens of its tokenizer exchanged
    const auto other = folder_.path() / "other";
    std::filesystem::copy(source_folder / "static/models/demo", other,
                          std::filesystem::copy_options::recursive);
    std::ifstream in(other / "tokenizer.json", std::ios::binary);
    std::string json((std::istreambuf_iterator<char>(in)), {});
    const std::string first = "\"a\":", second = "\"b\":";
    const std::size_t at_first = json.find(first), at_second = json.find(second);
    ASSERT_NE(at_first, std::string::npos);
    ASSERT_NE(at_second, std::string::npos);
    json[at_first + 1] = 'b';
    json[at_second + 1] = 'a';
    std::filesystem::remove(other / "tokenizer.json");
    std::ofstream(other / "tokenizer.json", std::ios::binary) << json;
    opened = parts.open(other.string(), model_);
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.error().message.find("another vocabulary"), std::string::npos)
        << opened.error().message;

    opened = parts.open((folder_.path() / "nothing").string(), model_);
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.error().message.find("nothing"), std::string::npos);
}

}  // namespace
}  // namespace moex
