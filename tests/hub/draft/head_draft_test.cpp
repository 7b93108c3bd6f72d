// Tests drafts by a checkpoint's own head: its values against golden data of an independent
// implementation, its keys and values after drafts that were wrong, and texts with its drafts
// against texts without.
#include "hub/draft/head_draft.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>

#include <nlohmann/json.hpp>

#include "hub/engine/engine.h"
#include "hub/engine/scores.h"
#include "hub/model/package/draft_head.h"
#include "hub/model/package/verify.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

const char* const checkpoints[] = {"qwen35-moe", "qwen3-next"};

std::filesystem::path checkpoint_of(const std::string& name) {
    return repository() / "tests/golden/families" / name;
}

// A packed checkpoint with its draft head.
struct HeadModel {
    explicit HeadModel(const std::string& name, ExpertDtype dtype = ExpertDtype::f32,
                       Arithmetic arithmetic = Arithmetic::exact)
        : folder("head-draft") {
        PackOptions options;
        options.expert_dtype = dtype;
        options.hub_f32 = true;
        const auto report = pack_checkpoint(checkpoint_of(name), folder.path() / "package", options,
                                            test::compute_threads(), {});
        if (!report.ok()) throw std::runtime_error(report.error().message);
        package = value_of(ModelPackage::open(folder.path() / "package"));
        head_package = value_of(open_draft_head(*package));
        decoder = value_of(
            Decoder::create(package, test::compute_threads(), {.arithmetic = arithmetic}));
        head = value_of(decoder->draft_head(head_package, test::compute_threads()));
        experts.emplace(package, test::compute_threads(), ExpertRounding{}, arithmetic);
        head_experts.emplace(head_package, test::compute_threads(), ExpertRounding{}, arithmetic);
    }
    template <class T>
    static T value_of(Result<T> result) {
        if (!result.ok()) throw std::runtime_error(result.error().message);
        return std::move(result).value();
    }
    std::size_t hidden_size() const { return package->config().hidden_size; }

    // Returns the rows of all tokens after the final norm, [num_tokens, hidden_size].
    std::vector<float> rows_of(std::span<const TokenId> tokens) {
        KvCache cache(package->config(), {16, 64, KvDtype::f32});
        KvCache::Sequence sequence(cache);
        const StepRows rows{.kv = &sequence, .tokens = tokens, .no_logits = true, .hidden = true};
        return value_of(decoder->run({&rows, 1}, *experts, 1, {})).hidden;
    }
    HeadDraftOptions options(std::uint32_t tokens_max = 4) const {
        return {.kv = {.page_tokens = 16, .num_pages = 256, .dtype = KvDtype::f32},
                .tokens_max = tokens_max};
    }

    test::TemporaryFolder folder;
    std::shared_ptr<const ModelPackage> package, head_package;
    std::unique_ptr<Decoder> decoder, head;
    std::optional<LocalExperts> experts, head_experts;
};

nlohmann::json golden_of(const std::string& name) {
    std::ifstream in(checkpoint_of(name) / "golden.json");
    EXPECT_TRUE(in.good()) << name;
    return nlohmann::json::parse(in);
}

// Entry t of mtp_top_*: the likeliest tokens at position t + 2, by the model's row of token t and
// the token t + 1.
TEST(HeadDraftTest, LogProbabilitiesAgreeWithin1em3) {
    for (const char* name : checkpoints) {
        HeadModel model(name);
        const std::size_t vocab_size = model.package->config().vocab_size;
        double worst = 0;
        std::size_t compared = 0;
        for (const auto& entry : golden_of(name)) {
            if (!entry.contains("mtp_top_ids")) continue;
            const auto ids = entry.at("ids").get<std::vector<TokenId>>();
            const std::vector<float> rows = model.rows_of(ids);
            KvCache cache(model.head_package->config(), {16, 64, KvDtype::f32});
            KvCache::Sequence sequence(cache);
            const StepRows step{
                .kv = &sequence,
                .tokens = std::span(ids).subspan(1),
                .all_logits = true,
                .follows = std::span(rows).first((ids.size() - 1) * model.hidden_size())};
            auto result = model.head->run({&step, 1}, *model.head_experts, 1, {});
            ASSERT_TRUE(result.ok()) << result.error().message;
            std::vector<float> logprobs(vocab_size);
            for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
                log_softmax(std::span(result->logits).subspan(t * vocab_size, vocab_size),
                            logprobs);
                for (std::size_t i = 0; i < entry.at("mtp_top_ids")[t].size(); ++i, ++compared)
                    worst = std::max<double>(
                        worst, std::abs(logprobs[entry.at("mtp_top_ids")[t][i].get<TokenId>()] -
                                        entry.at("mtp_top_logprobs")[t][i].get<double>()));
            }
        }
        std::cout << name << ": " << compared << " values, largest difference " << worst << '\n';
        EXPECT_GT(compared, 1'000u) << name;
        EXPECT_LE(worst, 1e-3) << name;
    }
}

// Entry j of mtp_draft: the draft for greedy[j + 1], after prompt and greedy[0 ... j].
TEST(HeadDraftTest, DraftsOfGreedyTextsAreTheGoldenOnes) {
    for (const char* name : checkpoints) {
        HeadModel model(name);
        std::size_t compared = 0;
        for (const auto& entry : golden_of(name)) {
            if (!entry.contains("mtp_draft")) continue;
            const auto draft = entry.at("mtp_draft").get<std::vector<TokenId>>();
            const auto margin = entry.at("mtp_draft_margin").get<std::vector<double>>();
            GenerationRequest request;
            request.prompt = entry.at("ids").get<std::vector<TokenId>>();
            request.sampling.temperature = 0;
            std::vector<TokenId> tokens = request.prompt;
            for (const TokenId id : entry.at("greedy")) tokens.push_back(id);
            const std::vector<float> rows = model.rows_of(tokens);

            HeadDrafts drafts(*model.head, *model.head_experts, model.options(1));
            const auto own = drafts.begin(request);
            for (std::size_t j = 0, seen = 0; j < draft.size(); ++j) {
                const std::size_t num_tokens = request.prompt.size() + j + 1;
                drafts.see(*own, static_cast<std::uint32_t>(seen),
                           std::span(rows).subspan(seen * model.hidden_size(),
                                                   (num_tokens - 1 - seen) * model.hidden_size()));
                seen = num_tokens - 1;
                DraftCall call{.draft = own.get(),
                               .tokens = std::span(tokens).first(num_tokens),
                               .tokens_max = 3};
                drafts.propose({&call, 1});
                ASSERT_EQ(call.proposed.size(), 1u) << name << ' ' << j;
                if (margin[j] <= 2e-3) continue;
                EXPECT_EQ(call.proposed[0], draft[j]) << name << ' ' << j;
                ++compared;
            }
        }
        std::cout << name << ": " << compared << " drafts compared\n";
        EXPECT_GT(compared, 50u) << name;
    }
}

// Proposals of a head that drafts four tokens after each token, all of which may be wrong, equal
// those of a head that has drafted nothing before.
TEST(HeadDraftTest, KeysAreRightAfterDraftsThatWereRolledBack) {
    HeadModel model("qwen35-moe");
    const std::vector<TokenId> tokens = test::random_tokens(60, 320, 5);
    const std::vector<float> rows = model.rows_of(tokens);
    GenerationRequest request;
    request.prompt.assign(tokens.begin(), tokens.begin() + 9);
    request.sampling.seed = 3;
    const std::size_t size = model.hidden_size();

    HeadDrafts drafts(*model.head, *model.head_experts, model.options());
    const auto busy = drafts.begin(request);
    std::size_t seen = 0;
    const auto propose = [&](HeadDrafts& by, Draft& draft, std::size_t from, std::size_t end) {
        by.see(draft, static_cast<std::uint32_t>(from),
               std::span(rows).subspan(from * size, (end - 1 - from) * size));
        DraftCall call{.draft = &draft, .tokens = std::span(tokens).first(end), .tokens_max = 4};
        by.propose({&call, 1});
        return call.proposed;
    };
    for (std::size_t end = 10; end <= tokens.size(); end += 1 + end % 3) {
        const auto fresh = drafts.begin(request);
        const auto wanted = propose(drafts, *fresh, 0, end);
        EXPECT_EQ(wanted.size(), 4u);
        EXPECT_EQ(propose(drafts, *busy, seen, end), wanted) << end;
        seen = end - 1;
    }
    // rows that are given again after a preemption change nothing
    const auto again = drafts.begin(request);
    drafts.see(*again, 0, std::span(rows).first(20 * size));
    drafts.see(*again, 0, std::span(rows).first(10 * size));
    drafts.see(*again, 10, std::span(rows).subspan(10 * size, 15 * size));
    const auto fresh = drafts.begin(request);
    EXPECT_EQ(propose(drafts, *again, 25, 40), propose(drafts, *fresh, 0, 40));
    // without the row before the last token there is no draft
    const auto lacking = drafts.begin(request);
    drafts.see(*lacking, 0, std::span(rows).first(20 * size));
    DraftCall call{.draft = lacking.get(), .tokens = std::span(tokens).first(30), .tokens_max = 4};
    drafts.propose({&call, 1});
    EXPECT_TRUE(call.proposed.empty());
}

// A head knows the last rows of a long text only, and those behind a part from the prefix cache.
TEST(HeadDraftTest, HeadBeginsWhereItsRowsBegin) {
    HeadModel model("qwen3-next");
    const std::vector<TokenId> tokens = test::random_tokens(70, 320, 6);
    const std::vector<float> rows = model.rows_of(tokens);
    GenerationRequest request;
    request.prompt = tokens;
    request.sampling.seed = 4;
    const std::size_t size = model.hidden_size();
    HeadDraftOptions options = model.options();
    options.rows_kept_max = 16;
    HeadDrafts drafts(*model.head, *model.head_experts, options);
    const auto all = drafts.begin(request), tail = drafts.begin(request);
    for (std::size_t at = 0; at < 69; ++at)
        drafts.see(*all, static_cast<std::uint32_t>(at), std::span(rows).subspan(at * size, size));
    // the last trim was at a multiple of five rows: 69 rows leave 19 of them, from row 50 on
    drafts.see(*tail, 50, std::span(rows).subspan(50 * size, 19 * size));
    DraftCall calls[] = {{.draft = all.get(), .tokens = tokens, .tokens_max = 4},
                         {.draft = tail.get(), .tokens = tokens, .tokens_max = 4}};
    drafts.propose(calls);
    EXPECT_EQ(calls[0].proposed.size(), 4u);
    EXPECT_EQ(calls[0].proposed, calls[1].proposed);
}

// A later text that goes on from a copy of an earlier one proposes what a sequence proposes that
// has seen the rows that were kept.
TEST(HeadDraftTest, KeptRowsAreTheBeginningOfALaterText) {
    HeadModel model("qwen35-moe");
    const std::vector<TokenId> tokens = test::random_tokens(70, 320, 7);
    const std::vector<float> rows = model.rows_of(tokens);
    GenerationRequest request;
    request.prompt = tokens;
    request.sampling.seed = 5;
    const std::size_t size = model.hidden_size();
    HeadDraftOptions options = model.options();
    options.rows_kept_max = 16;
    HeadDrafts drafts(*model.head, *model.head_experts, options);
    const auto see = [&](Draft& draft, std::uint32_t first, std::uint32_t end) {
        drafts.see(draft, first, std::span(rows).subspan(first * size, (end - first) * size));
    };
    const auto propose = [&](Draft& draft, std::size_t end) {
        DraftCall call{.draft = &draft, .tokens = std::span(tokens).first(end), .tokens_max = 4};
        drafts.propose({&call, 1});
        return call.proposed;
    };

    // rows that have keys already are kept, too
    const auto earlier = drafts.begin(request);
    see(*earlier, 0, 40);
    EXPECT_EQ(propose(*earlier, 41).size(), 4u);
    see(*earlier, 40, 43);
    const CompanionPtr kept = drafts.keep(*earlier, 40);
    ASSERT_NE(kept, nullptr);
    EXPECT_EQ(drafts.keep(*earlier, 44), nullptr);
    EXPECT_EQ(drafts.keep(*earlier, 24), nullptr);

    const auto later = drafts.begin(request), wanted = drafts.begin(request);
    drafts.resume(*later, 40, kept);
    see(*later, 40, 43);
    see(*wanted, 24, 43);
    const auto proposed = propose(*later, 44);
    EXPECT_EQ(proposed.size(), 4u);
    EXPECT_EQ(proposed, propose(*wanted, 44));

    // a sequence that knows these rows already, from before a preemption, keeps its own
    drafts.resume(*later, 40, kept);
    see(*later, 40, 44);
    see(*wanted, 43, 44);
    EXPECT_EQ(propose(*later, 45), propose(*wanted, 45));
}

class HeadTextTest : public testing::Test {
  protected:
    static constexpr std::uint32_t num_requests = 1'000;

    static GenerationRequest request_of(std::uint32_t i) {
        GenerationRequest request;
        request.prompt = test::random_tokens(3 + i % 29, 320, i % 40);
        request.max_tokens = 4 + i % 13;
        request.client = text("client ", i % 3);
        SamplingOptions& sampling = request.sampling;
        sampling.temperature = i % 4 == 0 ? 0 : i % 3 == 0 ? 1.2 : 0.8;
        sampling.top_p = i % 2 == 0 ? 0.95 : 1;
        sampling.repetition_penalty = i % 7 == 0 ? 1.2 : 1;
        sampling.seed = i;
        if (i % 11 == 0) request.stop_ids = {7, 100, 200};
        return request;
    }
    using Requests = std::function<GenerationRequest(std::uint32_t)>;
    std::vector<std::vector<TokenId>> run(const EngineOptions& options,
                                          const Requests& request_of = HeadTextTest::request_of) {
        std::vector<std::vector<TokenId>> answers(num_requests);
        std::vector<std::promise<GenerationEnd>> ends(num_requests);
        Engine engine(*model_.decoder, *model_.experts, options);
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
        drafts_ = {};
        accepted_.clear();
        for (auto& end : ends) {
            const DraftStats drafts = end.get_future().get().stats.drafts;
            accepted_.emplace_back(drafts.drafted_tokens, drafts.accepted_tokens);
            drafts_.add(drafts);
        }
        counters_ = engine.counters();
        return answers;
    }

    HeadModel model_{"qwen35-moe", ExpertDtype::int4, Arithmetic::int8};
    DraftStats drafts_;
    // [num_requests]: drafted and accepted tokens
    std::vector<std::pair<std::uint64_t, std::uint64_t>> accepted_;
    EngineCounters counters_;
};

TEST_F(HeadTextTest, TextsEqualThoseWithoutDraftsOverAThousandSeeds) {
    EngineOptions plain{.sequences_max = 12, .queue_max = num_requests, .kv_dtype = KvDtype::f16};
    const auto wanted = run(plain);
    EXPECT_EQ(drafts_.drafts, 0u);

    HeadDrafts drafts(*model_.head, *model_.head_experts, model_.options());
    for (const std::optional<std::uint32_t> tokens :
         {std::optional<std::uint32_t>(), std::optional(1u), std::optional(4u)}) {
        EngineOptions options = plain;
        options.draft_sources = {&drafts};
        options.draft_tokens = tokens;
        const auto answers = run(options);
        for (std::uint32_t i = 0; i < num_requests; ++i) ASSERT_EQ(answers[i], wanted[i]) << i;
        if (!tokens) continue;
        EXPECT_STREQ(drafts_.kind, "mtp");
        EXPECT_GT(drafts_.drafts, 1'000u);
        EXPECT_GT(drafts_.accepted_tokens, 0u);  // random weights: few are right
        std::cout << *tokens << " tokens a draft: " << drafts_.accepted_tokens << " of "
                  << drafts_.drafted_tokens << " accepted\n";
    }

    // with few pages, so that sequences are preempted and computed again
    EngineOptions small = plain;
    const KvCache probe(model_.package->config(), {.page_tokens = 16, .dtype = KvDtype::f16});
    small.prefix_cache = false;
    // states of twelve sequences and of a step, the head's rows, and a few pages
    const DraftMemory of_head = drafts.memory_max();
    small.kv_bytes_max = RecurrentShape::of(model_.package->config()).size_bytes() * 24 +
                         12 * of_head.sequence_bytes +
                         12 * (probe.page_bytes() + 16 * of_head.token_bytes);
    small.draft_sources = {&drafts};
    small.draft_tokens = 4;
    const auto answers = run(small);
    for (std::uint32_t i = 0; i < num_requests; ++i) ASSERT_EQ(answers[i], wanted[i]) << i;
    EXPECT_GT(counters_.preempted, 0u);
}

// Of a prefix from the cache the head has the rows that it would have seen, so that its drafts are
// the same, token by token. Texts run one after the other for that: beside others, a prompt may be
// cut before its last token, which then has drafts already. For the same reason no prompt has one
// token more than whole pages.
TEST_F(HeadTextTest, DraftsBehindACachedPrefixAreThoseWithoutACache) {
    const auto request_of = [](std::uint32_t i) {
        GenerationRequest request = HeadTextTest::request_of(i);
        request.prompt = test::random_tokens(48 + i / 50 * 2, 320, i / 50);
        const auto question = test::random_tokens(i % 5 * 4, 320, i);
        request.prompt.insert(request.prompt.end(), question.begin(), question.end());
        request.client = "one";
        return request;
    };
    HeadDrafts drafts(*model_.head, *model_.head_experts, model_.options());
    EngineOptions options{.sequences_max = 12,
                          .queue_max = num_requests,
                          .kv_dtype = KvDtype::f16,
                          .prefix_cache = false};
    const auto wanted = run(options, request_of);
    options.draft_sources = {&drafts};
    options.draft_tokens = 4;
    options.prefix_cache = true;
    EXPECT_EQ(run(options, request_of), wanted);
    EXPECT_GT(counters_.cached_tokens, 20'000u);

    options.sequences_max = 1;
    options.prefix_cache = false;
    EXPECT_EQ(run(options, request_of), wanted);
    const auto wanted_accepted = accepted_;
    EXPECT_EQ(counters_.cached_tokens, 0u);
    EXPECT_GT(drafts_.accepted_tokens, 0u);
    options.prefix_cache = true;
    EXPECT_EQ(run(options, request_of), wanted);
    EXPECT_EQ(accepted_, wanted_accepted);
    EXPECT_GT(counters_.cached_tokens, 20'000u);
    std::cout << counters_.cached_tokens << " tokens from the cache, " << drafts_.accepted_tokens
              << " of " << drafts_.drafted_tokens << " accepted\n";
}

TEST(HeadPackageTest, PackageWithoutTheHeadLoadsAndADamagedHeadIsNamed) {
    HeadModel model("qwen35-moe");
    const auto folder = model.folder.path() / "package";
    EXPECT_TRUE(verify_package(folder, {}).ok());

    // The head alone computes nothing.
    const auto alone = Decoder::create(model.head_package, test::compute_threads());
    ASSERT_FALSE(alone.ok());
    EXPECT_NE(alone.error().message.find("use the folder above"), std::string::npos);
    EXPECT_FALSE(model.decoder->draft_head(model.package, test::compute_threads()).ok());

    // a manifest of another head
    const auto manifest = draft_head_folder(folder) / "manifest.json";
    std::ifstream in(manifest);
    std::string json((std::istreambuf_iterator<char>(in)), {});
    std::ofstream(manifest) << json << '\n';
    const auto mixed = HeadModel::value_of(ModelPackage::open(folder));
    EXPECT_EQ(open_draft_head(*mixed).error().code, ErrorCode::hash_mismatch);
    EXPECT_EQ(verify_package(folder, {}).error().code, ErrorCode::hash_mismatch);
    for (const auto& file : mixed->files()) EXPECT_FALSE(file.name.starts_with("draft_head"));

    // A copy without the head's folder loads; only drafts are missing.
    std::filesystem::remove_all(draft_head_folder(folder));
    const auto without = HeadModel::value_of(ModelPackage::open(folder));
    EXPECT_EQ(open_draft_head(*without).error().code, ErrorCode::not_found);
    EXPECT_FALSE(without->files().empty());
}

// A copy that is made of files(), as another machine makes it, is the whole package.
TEST(HeadPackageTest, CopyFileByFileIsThePackageWithItsHead) {
    HeadModel model("qwen35-moe");
    const ModelPackage& package = *model.package;
    const test::TemporaryFolder folder("head-copy");
    std::size_t of_head = 0;
    for (const auto& file : package.files()) {
        const bool is_head = file.name.starts_with("draft_head/");
        of_head += is_head;
        const ByteView bytes = HeadModel::value_of(package.file(file.sha256));
        EXPECT_FALSE(package.must_hash(file.sha256)) << file.name;
        EXPECT_EQ(bytes.size(), file.size_bytes) << file.name;
        const auto path = folder.path() / file.name;
        std::filesystem::create_directories(path.parent_path());
        std::ofstream(path, std::ios::binary) << as_text_view(bytes);
    }
    EXPECT_EQ(of_head, 2u + model.head_package->num_blobs());
    EXPECT_TRUE(verify_package(folder.path(), {}).ok());
    const auto copy = HeadModel::value_of(ModelPackage::open(folder.path()));
    EXPECT_EQ(copy->manifest_sha256(), package.manifest_sha256());
    EXPECT_EQ(HeadModel::value_of(open_draft_head(*copy))->manifest_sha256(),
              model.head_package->manifest_sha256());

    // A damaged blob of the head is not given to anybody.
    const std::string damaged = to_hex(copy->draft_head().value()->blob_hash(0, 1));
    std::fstream blob(draft_head_folder(folder.path()) / "weights" / damaged,
                      std::ios::in | std::ios::out | std::ios::binary);
    blob.put('!');
    blob.close();
    EXPECT_EQ(HeadModel::value_of(ModelPackage::open(folder.path()))
                  ->file(parse_sha256(damaged).value())
                  .error()
                  .code,
              ErrorCode::hash_mismatch);
}

TEST(HeadPackageTest, SyntheticPackageOfAFamilyWithHeadsHasOne) {
    ModelConfig config = test::hybrid_config();
    config.architecture = "qwen3_next";
    const auto package = test::synth(config, "synthetic-head");
    EXPECT_TRUE(verify_package(package->directory(), {}).ok());
    const auto of_head = HeadModel::value_of(open_draft_head(*package));
    const auto decoder = HeadModel::value_of(Decoder::create(package, test::compute_threads()));
    const auto head = HeadModel::value_of(decoder->draft_head(of_head, test::compute_threads()));
    LocalExperts experts(of_head, test::compute_threads(), {});
    HeadDrafts drafts(*head, experts, {.kv = {.page_tokens = 16, .num_pages = 4}});
    GenerationRequest request;
    request.prompt = test::random_tokens(3, config.vocab_size, 1);
    const auto draft = drafts.begin(request);
    drafts.see(*draft, 0, test::random_floats(2 * config.hidden_size, 2));
    DraftCall call{.draft = draft.get(), .tokens = request.prompt, .tokens_max = 2};
    drafts.propose({&call, 1});
    EXPECT_EQ(call.proposed.size(), 2u);

    // other shapes are as they were
    EXPECT_FALSE(test::tiny_package()->has_draft_head());
}

}  // namespace
}  // namespace moex
