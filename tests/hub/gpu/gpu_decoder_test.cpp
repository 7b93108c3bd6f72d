// Tests the whole model on a Vulkan device (lavapipe if there is no GPU): it is compared with
// golden files of an independent implementation, and its bits are the same however a text is cut
// into chunks.
#include "web-worker/decoder/gpu_decoder.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>

#include <nlohmann/json.hpp>

#include "hub/commands/gpu/gpu_model.h"
#include "hub/commands/gpu/package_weights.h"
#include "hub/engine/scores.h"
#include "hub/model/pack/packer.h"
#include "hub/model/pack/synth.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/hub/gpu/arriving_weights.h"
#include "tests/hub/gpu/requests.h"
#include "tests/support/posted_loop.h"
#include "tests/support/repository.h"
#include "web-worker/decoder/greedy_loop.h"
#include "web-worker/decoder/sampled_loop.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/local/gpu_sequence.h"
#include "web-worker/local/sampler_chooser.h"

namespace moex {
namespace {

using namespace std::chrono_literals;

const std::filesystem::path source_folder = repository();

std::shared_ptr<const ModelPackage> packed(const std::filesystem::path& checkpoint,
                                           const std::filesystem::path& out,
                                           ExpertDtype dtype = ExpertDtype::bf16) {
    PackOptions options;
    options.expert_dtype = dtype;
    must(pack_checkpoint(checkpoint, out, options, test::compute_threads(), {}));
    return must(ModelPackage::open(out));
}

// A package that is loaded on the GPU as a whole model, or without its last layers.
class OnGpu {
  public:
    explicit OnGpu(std::shared_ptr<const ModelPackage> package, GpuDecoderOptions options = {},
                   std::uint32_t num_here = ~0u)
        : device(must(gpu::open_vulkan_device({}, loop.poster()))),
          weights(package, must(decoder_model_of(*package))) {
        options.every_logit = true;
        const DecoderModel model = must(decoder_model_of(*package));
        weights.num_here = num_here;
        bool finished = false;
        std::string failure;
        GpuDecoder::create(*device, model, options, weights,
                           [&](Result<std::unique_ptr<GpuDecoder>> created) {
                               finished = true;
                               if (created.ok())
                                   decoder = std::move(*created);
                               else
                                   failure = created.error().message;
                           });
        if (!finished) loop.run_until(finished);
        if (!decoder) throw std::runtime_error(failure);
    }

    // Returns the logits of every row of a text, computed `chunk` tokens at a time.
    std::vector<float> logits(std::span<const TokenId> ids, std::size_t chunk) {
        std::vector<float> all;
        for (std::size_t first = 0; first < ids.size(); first += chunk) {
            const auto part = ids.subspan(first, std::min(chunk, ids.size() - first));
            const Status fed = decoder->feed(part, StepLogits::every);
            if (!fed.ok()) throw std::runtime_error(fed.error().message);
            bool finished = false;
            Status was_read;
            decoder->read_logits([&](Result<std::span<const float>> read) {
                finished = true;
                if (read.ok())
                    all.insert(all.end(), read->begin(), read->end());
                else
                    was_read = read.error();
            });
            loop.run_until(finished);
            if (!was_read.ok()) throw std::runtime_error(was_read.error().message);
        }
        return all;
    }
    // Returns the greedy answer to `prompt`; expects that the answer ended with the reason
    // `wanted`.
    std::vector<TokenId> greedy(std::span<const TokenId> prompt, GreedyOptions options,
                                AnswerEnd wanted, std::size_t cancel_at = 1000) {
        options.reading_max = 1h;  // the test must not depend on this machine's step time
        std::vector<TokenId> answer;
        bool finished = false;
        GreedyLoop* running = nullptr;
        GreedyLoop answering(*decoder, std::move(options),
                             {.on_tokens =
                                  [&](std::span<const std::uint32_t> ids) {
                                      answer.insert(answer.end(), ids.begin(), ids.end());
                                      if (answer.size() >= cancel_at) running->cancel();
                                  },
                              .on_end =
                                  [&](Result<AnswerEnd> how) {
                                      finished = true;
                                      EXPECT_TRUE(how.ok());
                                      if (how.ok()) {
                                          EXPECT_EQ(*how, wanted);
                                      }
                                  }});
        running = &answering;
        answering.start(prompt);
        if (!finished) loop.run_until(finished);
        return answer;
    }

    // Returns the tokens that a sampler draws after `prompt`; expects that the answer ended with
    // the reason `wanted`.
    std::vector<TokenId> sampled(std::span<const TokenId> prompt, const SamplingOptions& sampling,
                                 SampledOptions options, AnswerEnd wanted,
                                 std::size_t cancel_at = 1000) {
        std::vector<TokenId> answer;
        bool finished = false;
        AnswerLoop* running = nullptr;
        GpuSequence sequence(*decoder);
        SampledLoop answering(sequence, std::move(options),
                              std::make_unique<SamplerChooser>(Sampler(sampling, prompt)),
                              {.on_tokens =
                                   [&](std::span<const std::uint32_t> ids) {
                                       answer.insert(answer.end(), ids.begin(), ids.end());
                                       if (answer.size() >= cancel_at) running->cancel();
                                   },
                               .on_end =
                                   [&](Result<AnswerEnd> how) {
                                       finished = true;
                                       EXPECT_TRUE(how.ok());
                                       if (how.ok()) {
                                           EXPECT_EQ(*how, wanted);
                                       }
                                   }});
        running = &answering;
        answering.start(prompt);
        if (!finished) loop.run_until(finished);
        return answer;
    }

    test::PostedLoop loop;
    std::unique_ptr<gpu::Device> device;
    ArrivingWeights weights;
    std::unique_ptr<GpuDecoder> decoder;
};

const SamplingOptions sampling_kinds[] = {
    // the first two options draw from the likeliest tokens
    {.temperature = 0.8, .top_p = 0.95, .sample_top_k = 40, .seed = 7},
    {.temperature = 1.5, .sample_top_k = 64, .min_p = 0.05, .seed = 8},
    {.temperature = 1, .top_p = 0.9, .seed = 9},  // from all logits
    {.temperature = 1, .sample_top_k = 100, .seed = 10},
    {.temperature = 1, .min_p = 0.1, .seed = 11},
    {.temperature = 0, .repetition_penalty = 1.3},
    {.temperature = 0.9,
     .presence_penalty = 1,
     .frequency_penalty = 0.5,
     .logit_bias = {{3, 4.0f}, {5, -100.0f}},
     .seed = 12}};

// Returns the largest difference between a log-probability of the GPU and that in golden.json.
// Expects equal greedy tokens where a token's margin in golden.json is larger than `margin_min`.
double compare_with_golden(OnGpu& model, const nlohmann::json& golden, double margin_min) {
    const std::size_t vocab_size = model.decoder->model().vocab_size;
    double worst = 0;
    std::size_t compared = 0, greedy_compared = 0;
    for (const auto& entry : golden) {
        const auto ids = entry.at("ids").get<std::vector<TokenId>>();
        const auto greedy = entry.at("greedy").get<std::vector<TokenId>>();
        auto forced = ids;
        forced.insert(forced.end(), greedy.begin(), greedy.end());
        model.decoder->rewind(0);
        std::vector<float> logprobs = model.logits(forced, 32);
        for (std::size_t row = 0; row < forced.size(); ++row) {
            const auto one = std::span(logprobs).subspan(row * vocab_size, vocab_size);
            log_softmax(one, one);
        }

        const auto compare = [&](double mine, double wanted) {
            worst = std::max(worst, std::abs(mine - wanted));
            ++compared;
        };
        const auto top_of = [&](std::size_t row, const auto& top_ids, const auto& top_logprobs) {
            for (std::size_t j = 0; j < top_ids.size(); ++j)
                compare(logprobs[row * vocab_size + top_ids[j].template get<TokenId>()],
                        top_logprobs[j]);
        };
        for (std::size_t i = 0; i + 1 < ids.size(); ++i)
            compare(-logprobs[i * vocab_size + ids[i + 1]], entry.at("nll")[i]);
        const auto &top_ids = entry.at("top_ids"), &top_logprobs = entry.at("top_logprobs");
        if (top_ids[0].is_array())
            for (std::size_t row = 0; row < ids.size(); ++row)
                top_of(row, top_ids[row], top_logprobs[row]);
        else
            top_of(ids.size() - 1, top_ids, top_logprobs);

        for (std::size_t i = 0; i < greedy.size(); ++i) {
            if (entry.at("greedy_margin")[i].get<double>() <= margin_min) continue;
            const auto row = logprobs.begin() +
                             static_cast<std::ptrdiff_t>((ids.size() - 1 + i) * vocab_size);
            EXPECT_EQ(std::max_element(row, row + static_cast<std::ptrdiff_t>(vocab_size)) - row,
                      greedy[i])
                << "greedy token " << i;
            ++greedy_compared;
        }
    }
    std::cout << model.device->adapter().description << ": " << compared
              << " values, largest difference " << worst << ", " << greedy_compared
              << " greedy tokens\n";
    EXPECT_GT(compared, 60u);
    return worst;
}

nlohmann::json golden_of(const std::string& name) {
    std::ifstream in(source_folder / "tests/golden" / name / "golden.json");
    return nlohmann::json::parse(in);
}

TEST(GpuDecoderTest, QwenTinyAgreesWithItsGolden) {
    const test::TemporaryFolder folder("gpu-tiny");
    OnGpu model(packed(source_folder / "tests/golden/qwen3-tiny", folder.path() / "package"));
    EXPECT_LE(compare_with_golden(model, golden_of("qwen3-tiny"), 1e-3), 1e-4);
}

TEST(GpuDecoderTest, DenseModelsAgreeWithTheirGoldens) {
    const test::TemporaryFolder folder("gpu-dense");
    for (const std::string name : {"qwen2", "qwen3", "llama"}) {
        SCOPED_TRACE(name);
        const std::string golden = "dense/" + name;
        OnGpu model(packed(source_folder / "tests/golden" / golden, folder.path() / name));
        EXPECT_LE(compare_with_golden(model, golden_of(golden), 1e-3), 1e-4);
    }
}

// Distance between the GPU's logits and the logits that the CPU computes exactly: the largest
// difference, and the root mean square of the differences relative to that of the logits.
struct Distance {
    float largest = 0;
    double share = 0;
};
Distance far_from_cpu(const std::shared_ptr<const ModelPackage>& package,
                      const std::vector<float>& mine, std::span<const TokenId> ids) {
    auto decoder = must(Decoder::create(package, test::compute_threads()));
    LocalExperts experts(package, test::compute_threads(), {}, Arithmetic::exact);
    KvCache cache(package->config(), {16, 10});
    KvCache::Sequence sequence(cache);
    const StepRows rows{.kv = &sequence, .tokens = ids, .all_logits = true};
    const StepResult step = must(decoder->step({&rows, 1}, experts));
    if (mine.size() != step.logits.size()) throw std::runtime_error("not as many logits");
    Distance far;
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < mine.size(); ++i) {
        const float one = std::abs(mine[i] - step.logits[i]);
        far.largest = std::max(far.largest, one);
        difference += double{one} * one;
        size += double{step.logits[i]} * step.logits[i];
    }
    far.share = std::sqrt(difference / size);
    return far;
}

// Expects that a model agrees with its golden file, and that its bits do not depend on how a text
// is cut into steps or on the lanes that share a sum.
void expect_golden_and_same_bits(const std::string& name,
                                 const std::shared_ptr<const ModelPackage>& package) {
    OnGpu model(package);
    EXPECT_LE(compare_with_golden(model, golden_of(name), 2e-3), 1e-3);
    OnGpu halves(package, {.kv_kind = KvKind::f16});
    EXPECT_LE(compare_with_golden(halves, golden_of(name), 4e-2), 2e-2);

    const auto ids = test::random_tokens(150, package->config().vocab_size, 8);
    model.decoder->rewind(0);
    const auto wanted = model.logits(ids, 1);
    EXPECT_LE(far_from_cpu(package, wanted, ids).largest, 1e-3f);
    for (const std::size_t chunk : {7u, 64u}) {
        model.decoder->rewind(0);
        expect_same_bits(model.logits(ids, chunk), wanted);
    }
    OnGpu spread(package, {.spread = true});
    expect_same_bits(spread.logits(ids, 1), wanted);
}

// Families beyond Qwen's.
class FamiliesOnGpuTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, FamiliesOnGpuTest,
                         testing::Values("mixtral", "olmoe", "qwen2-moe", "granite-moe", "glm4-moe",
                                         "gpt-oss-mxfp4", "qwen35-moe", "qwen3-next"));

TEST_P(FamiliesOnGpuTest, AgreesWithItsGoldenAndWithItselfInChunks) {
    const std::string name = text("families/", GetParam());
    const test::TemporaryFolder folder("gpu-family");
    expect_golden_and_same_bits(
        name, packed(source_folder / "tests/golden" / name, folder.path() / "package"));
}

// The experts of gpt-oss as they are released, computed as they are.
TEST(Mxfp4OnGpuTest, AgreesWithItsGoldenAndWithItselfInChunks) {
    const std::string name = "families/gpt-oss-mxfp4";
    const test::TemporaryFolder folder("gpu-mxfp4");
    expect_golden_and_same_bits(name, packed(source_folder / "tests/golden" / name,
                                             folder.path() / "package", ExpertDtype::mxfp4));
}

TEST(GpuDecoderTest, HybridSequenceIsEmptyOnceItGoesBack) {
    const test::TemporaryFolder folder("gpu-hybrid");
    OnGpu model(packed(source_folder / "tests/golden/families/qwen3-next", folder.path() / "it"));
    const auto ids = test::random_tokens(20, 320, 9);
    const auto wanted = model.logits(ids, 20);
    model.decoder->rewind(20);
    EXPECT_EQ(model.decoder->num_tokens(), 20u);
    model.decoder->rewind(19);
    EXPECT_EQ(model.decoder->num_tokens(), 0u);
    expect_same_bits(model.logits(ids, 6), wanted);
}

// A cache of several sequences, and one with states, has no table of evicted pages.
TEST(GpuDecoderTest, EvictedPagesOfASharedCacheOrOfStatesAreRefused) {
    struct NoStore : EvictedPages {
        void write(std::uint32_t, ByteView, std::function<void(Status)> done) override {
            done(Error{ErrorCode::internal, "a page was written"});
        }
        void read(std::uint32_t, std::span<const std::uint32_t>,
                  std::function<void(Result<ByteView>)> done) override {
            done(Error{ErrorCode::internal, "a page was read"});
        }
    } store;
    const test::TemporaryFolder folder("gpu-evicted");
    test::PostedLoop loop;
    const auto device = must(gpu::open_vulkan_device({}, loop.poster()));
    int num_packages = 0;
    const auto code_of = [&](const char* name, const GpuDecoderOptions& options) {
        const auto package = packed(source_folder / "tests/golden" / name,
                                    folder.path() / std::to_string(++num_packages));
        const DecoderModel model = must(decoder_model_of(*package));
        PackageWeights weights(package, model);
        std::optional<ErrorCode> code;
        bool finished = false;
        GpuDecoder::create(*device, model, options, weights, [&](auto created) {
            finished = true;
            if (!created.ok()) code = created.error().code;
        });
        if (!finished) loop.run_until(finished);
        return code;
    };
    const char *const plain = "families/olmoe", *const hybrid = "families/qwen3-next";
    const auto refused = std::optional(ErrorCode::invalid_argument);
    EXPECT_EQ(code_of(plain, {.context_tokens = 1024, .slots = 4, .evicted = &store}),
              std::nullopt);
    EXPECT_EQ(code_of(plain, {.pages = 8, .slots = 4, .evicted = &store}), refused);
    EXPECT_EQ(code_of(plain, {.pages = 8, .slots = 4}), refused);
    EXPECT_EQ(code_of(hybrid, {.context_tokens = 1024, .slots = 4, .evicted = &store}), refused);
}

TEST(GpuDecoderTest, LayersThatItDoesNotComputeAreRefusedByName) {
    const test::TemporaryFolder folder("gpu-refused");
    const auto package_of = [&](const char* family) {
        return packed(source_folder / "tests/golden/families" / family, folder.path() / family);
    };
    const auto expect_refused = [](const auto& result, const std::string& word) {
        ASSERT_FALSE(result.ok());
        EXPECT_NE(result.error().message.find(word), std::string::npos) << result.error().message;
    };
    const auto hybrid = package_of("qwen3-next");
    try {
        const OnGpu several(hybrid, {.pages = 8});
        FAIL() << "a hybrid for several sequences";
    } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find("several sequences"), std::string::npos);
    }
    const auto sharing = package_of("glm4-moe");
    DecoderModel shared = must(decoder_model_of(*sharing));
    EXPECT_TRUE(check_model(shared).ok());
    shared.experts_elsewhere = true;
    EXPECT_TRUE(check_model(shared).ok());
}

// Tests keys and values in f16 and int8 against golden files in f32. Codes (int8) are compared on a
// dense model: where a router is near a tie, the direction of rounding decides which experts
// answer, and that depends on the GPU.
TEST(GpuDecoderTest, RoundedKeysAndValuesStayNearTheirGoldens) {
    const test::TemporaryFolder folder("gpu-tiny-kv");
    OnGpu halves(packed(source_folder / "tests/golden/qwen3-tiny", folder.path() / "moe"),
                 {.kv_kind = KvKind::f16});
    EXPECT_LE(compare_with_golden(halves, golden_of("qwen3-tiny"), 1e-2), 2e-3);
    OnGpu codes(packed(source_folder / "tests/golden/dense/qwen3", folder.path() / "dense"),
                {.kv_kind = KvKind::u8});
    EXPECT_LE(compare_with_golden(codes, golden_of("dense/qwen3"), 1e-1), 5e-2);
}

TEST(GpuDecoderTest, DemoWithBf16ExpertsAgreesWithin2em3) {
    const char* checkpoint = std::getenv("MOEX_DEMO_CHECKPOINT");
    if (checkpoint == nullptr)
        GTEST_SKIP()
            << "SKIPPED: MOEX_DEMO_CHECKPOINT does not name the demo's full-precision checkpoint";
    const test::TemporaryFolder folder("gpu-demo");
    OnGpu model(packed(checkpoint, folder.path() / "package"));
    EXPECT_LE(compare_with_golden(model, golden_of("demo"), 1e-2), 2e-3);
}

// The model has INT4 experts and dense layers, and the text needs two pages. Steps have one row,
// one tile of rows or several tiles.
TEST(GpuDecoderTest, ChunkedPrefillEqualsTokenByTokenBitForBit) {
    const auto ids = test::random_tokens(132, 256, 1);
    OnGpu model(test::tiny_package());
    const auto wanted = model.logits(ids, 1);
    for (const std::size_t chunk : {3u, 8u, 64u}) {
        model.decoder->rewind(0);
        expect_same_bits(model.logits(ids, chunk), wanted);
    }
}

// Reads `early` tokens of a text while the layers from `num_here` on arrive one after the other,
// then the rest of the text. Returns the logits of the rest.
std::vector<float> logits_read_early(OnGpu& gpu, std::span<const TokenId> ids, std::uint32_t early,
                                     std::uint32_t num_here) {
    std::uint32_t computed = 0, wanted = num_here;
    bool reached = num_here == 0;
    const auto reaches = [&](std::uint32_t layers) {
        EXPECT_GT(layers, computed);
        computed = layers;
        reached = computed >= wanted;
    };
    EXPECT_FALSE(gpu.decoder->is_whole());
    EXPECT_TRUE(gpu.decoder->begin_early(ids.first(early), reaches).ok());
    const std::uint32_t num_layers = gpu.decoder->model().num_layers;
    for (std::uint32_t layer = num_here; layer < num_layers; ++layer) {
        // The layers before this one are computed, although the later ones are not here.
        if (!reached) gpu.loop.run_until(reached);
        EXPECT_EQ(computed, layer);
        EXPECT_EQ(gpu.decoder->num_tokens(), 0u);
        reached = false;
        wanted = layer + 1;
        gpu.weights.num_here = layer + 1;
        EXPECT_TRUE(gpu.decoder->load_layer(layer, gpu.weights).ok());
    }
    EXPECT_TRUE(gpu.decoder->is_whole());
    EXPECT_EQ(gpu.decoder->num_tokens(), early);
    return gpu.logits(ids.subspan(early), 16);
}

TEST(GpuDecoderTest, PromptReadWhileLayersArriveHasTheSameBits) {
    const auto ids = test::random_tokens(100, 256, 1);
    OnGpu at_once(test::tiny_package());
    const std::vector<float> all = at_once.logits(ids, 64);
    const std::uint32_t row = at_once.decoder->model().vocab_size,
                        last = at_once.decoder->model().num_layers - 1;
    for (const auto& [early, num_here] : {std::pair{64u, 0u}, {63u, 1u}, {1u, last}}) {
        OnGpu gpu(test::tiny_package(), {}, num_here);
        expect_same_bits(logits_read_early(gpu, ids, early, num_here),
                         std::span(all).subspan(std::size_t{early} * row));
    }
}

// A prompt that is given up before all layers are here leaves nothing behind.
TEST(GpuDecoderTest, PromptGivenUpWhileLayersArriveLeavesNothing) {
    const auto ids = test::random_tokens(60, 256, 1), other = test::random_tokens(40, 256, 2);
    OnGpu gpu(test::tiny_package(), {}, 1);
    EXPECT_TRUE(gpu.decoder->begin_early(other, [](std::uint32_t) { ADD_FAILURE(); }).ok());
    gpu.decoder->rewind(0);
    const std::vector<float> rest = logits_read_early(gpu, ids, 20, 1);
    OnGpu at_once(test::tiny_package());
    const std::vector<float> all = at_once.logits(ids, 64);
    expect_same_bits(rest,
                     std::span(all).subspan(std::size_t{20} * at_once.decoder->model().vocab_size));
}

TEST(GpuDecoderTest, TablesAndExpertsInSeveralBuffersGiveTheSameBits) {
    const auto ids = test::random_tokens(20, 256, 2);
    OnGpu whole(test::tiny_package());
    // Buffers of this size hold 128 rows of embeddings or one expert.
    OnGpu cut(test::tiny_package(),
              {.context_tokens = 128, .rows_max = 8, .weight_buffer_bytes = 20000});
    expect_same_bits(cut.logits(ids, 8), whole.logits(ids, 20));
    EXPECT_GT(cut.decoder->dispatches_of_a_step(), whole.decoder->dispatches_of_a_step());
}

// Tests both settings for steps of a single row: the one that a hardware GPU uses and the one that
// a processor (lavapipe) uses.
TEST(GpuDecoderTest, ARowSpreadOverMoreLanesGivesTheSameBits) {
    const auto ids = test::random_tokens(20, 256, 2);
    OnGpu together(test::tiny_package(), {.spread = false});
    OnGpu spread(test::tiny_package(), {.spread = true});
    expect_same_bits(spread.logits(ids, 1), together.logits(ids, 1));
}

std::shared_ptr<const ModelPackage> tiny_codes(const ModelConfig& config, HubDtype hub,
                                               ExpertDtype experts,
                                               const std::filesystem::path& out) {
    must(synth_package(config, "tiny", 7, out, {.expert_dtype = experts, .hub_dtype = hub},
                       test::compute_threads(), {}));
    return must(ModelPackage::open(out));
}

// The models are dense, so rounding to bf16 changes no expert choice. Codes of 4 bits are not
// rounded again.
TEST(GpuDecoderTest, HubMatricesInCodesAreNearThoseOfTheCpu) {
    const test::TemporaryFolder folder("gpu-codes");
    for (const char* name : {"qwen2", "qwen3"})
        for (const HubDtype hub : {HubDtype::int8, HubDtype::int4}) {
            SCOPED_TRACE(text(name, ", ", hub_dtype_name(hub)));
            const auto out = folder.path() / text(name, hub_dtype_name(hub));
            must(pack_checkpoint(source_folder / "tests/golden/dense" / name, out,
                                 {.hub_dtype = hub}, test::compute_threads(), {}));
            const auto package = must(ModelPackage::open(out));
            const auto ids = test::random_tokens(20, package->config().vocab_size, 3);
            OnGpu model(package);
            EXPECT_LE(far_from_cpu(package, model.logits(ids, 20), ids).share, 1e-2);
        }
}

TEST(GpuDecoderTest, CodesOf4BitsStayWhereExpertsHaveTheirGroup) {
    const test::TemporaryFolder folder("gpu-kinds");
    int number = 0;
    for (const auto& [hub, experts, wanted] :
         {std::tuple(HubDtype::int8, ExpertDtype::int4, WeightKind::bf16),
          std::tuple(HubDtype::int4, ExpertDtype::int4, WeightKind::int4),
          std::tuple(HubDtype::int4, ExpertDtype::bf16, WeightKind::bf16)}) {
        SCOPED_TRACE(text(hub_dtype_name(hub), ", experts ", expert_dtype_name(experts)));
        const DecoderModel model = must(decoder_model_of(
            *tiny_codes(test::tiny_config(), hub, experts, folder.path() / text(number++))));
        EXPECT_EQ(model.attention_kind, wanted);
        EXPECT_EQ(model.dense_kind, wanted);
        EXPECT_EQ(model.table_kind, WeightKind::bf16);
        EXPECT_EQ(model.router_kind, WeightKind::bf16);
    }
}

TEST(GpuDecoderTest, LogitsAreNearThoseOfTheCpu) {
    const auto package = test::tiny_package();
    const auto ids = test::random_tokens(40, 256, 3);
    OnGpu model(package);
    EXPECT_LE(far_from_cpu(package, model.logits(ids, 40), ids).largest, 1e-3f);
}

TEST(GpuDecoderTest, GreedyAnswerDoesNotDependOnTokensPerRead) {
    const auto prompt = test::random_tokens(9, 256, 4);
    OnGpu model(test::tiny_package());
    const auto wanted = model.greedy(prompt, {.max_tokens = 60, .fetch_tokens = 1},
                                     AnswerEnd::length);
    ASSERT_EQ(wanted.size(), 60u);

    const gpu::DeviceCounters warm = model.device->counters();
    for (const std::uint32_t fetch_tokens : {4u, 16u}) {
        model.decoder->rewind(0);
        EXPECT_EQ(model.greedy(prompt, {.max_tokens = 60, .fetch_tokens = fetch_tokens},
                               AnswerEnd::length),
                  wanted);
    }
    const gpu::DeviceCounters after = model.device->counters();
    EXPECT_EQ(after.buffers_created, warm.buffers_created);
    EXPECT_EQ(after.bind_groups_created, warm.bind_groups_created);
    EXPECT_EQ(after.pipelines_created, warm.pipelines_created);

    // A stop token ends the answer at its first occurrence, and the tokens computed after it are
    // discarded.
    const TokenId stop = wanted[20];
    const auto end = std::find(wanted.begin(), wanted.end(), stop);
    model.decoder->rewind(0);
    const auto cut = model.greedy(prompt, {.max_tokens = 60, .fetch_tokens = 8, .stop_ids = {stop}},
                                  AnswerEnd::stop);
    EXPECT_EQ(cut, std::vector<TokenId>(wanted.begin(), end));
    EXPECT_EQ(model.decoder->num_tokens(),
              prompt.size() + std::max<std::size_t>(cut.size(), 1) - 1);
}

TEST(GpuDecoderTest, ACancelledAnswerEndsAndTheNextOneIsWhole) {
    const auto prompt = test::random_tokens(5, 256, 6);
    OnGpu model(test::tiny_package());
    const auto wanted = model.greedy(prompt, {.max_tokens = 40}, AnswerEnd::length);
    model.decoder->rewind(0);
    const auto cut = model.greedy(prompt, {.max_tokens = 40, .fetch_tokens = 4},
                                  AnswerEnd::cancelled, 7);
    EXPECT_GE(cut.size(), 7u);
    EXPECT_LT(cut.size(), 15u);  // tokens that were in flight at the cancel are dropped
    EXPECT_EQ(cut, std::vector<TokenId>(wanted.begin(), wanted.begin() + cut.size()));
    EXPECT_EQ(model.decoder->num_tokens(), prompt.size() + cut.size() - 1);

    // The next answer continues where the cancelled answer ended.
    const auto rest = model.greedy(std::span(cut).last(1), {.max_tokens = 10}, AnswerEnd::length);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), wanted.begin() + cut.size()));
}

// The expected answer is computed from the logits of every position with the hub's sampler.
TEST(GpuDecoderTest, SampledAnswerEqualsTheHubsSampler) {
    const auto prompt = test::random_tokens(9, 256, 4);
    OnGpu model(test::tiny_package(), {.likeliest = true});
    const std::size_t vocab_size = model.decoder->model().vocab_size;
    for (const SamplingOptions& sampling : sampling_kinds) {
        Sampler sampler(sampling, prompt);
        std::vector<TokenId> all(prompt), wanted;
        model.decoder->rewind(0);
        std::vector<float> logits = model.logits(prompt, 64);
        while (wanted.size() < 30) {
            wanted.push_back(sampler.choose(std::span<const float>(logits).last(vocab_size)));
            sampler.accept(wanted.back());
            logits = model.logits(std::span(wanted).last(1), 1);
        }

        model.decoder->rewind(0);
        EXPECT_EQ(model.sampled(prompt, sampling, {.max_tokens = 30}, AnswerEnd::length), wanted);
        EXPECT_EQ(model.decoder->num_tokens(), prompt.size() + 29);

        const TokenId stop = wanted[20];
        model.decoder->rewind(0);
        const auto cut = model.sampled(prompt, sampling, {.max_tokens = 30, .stop_ids = {stop}},
                                       AnswerEnd::stop);
        EXPECT_EQ(cut, std::vector<TokenId>(wanted.begin(),
                                            std::find(wanted.begin(), wanted.end(), stop)));

        model.decoder->rewind(0);
        const auto cancelled = model.sampled(prompt, sampling, {.max_tokens = 30},
                                             AnswerEnd::cancelled, 5);
        EXPECT_EQ(cancelled, std::vector<TokenId>(wanted.begin(), wanted.begin() + 5));
        EXPECT_EQ(model.decoder->num_tokens(), prompt.size() + 4);
    }
}

// A decoder without buffers for lists of likeliest tokens draws the same tokens from all logits.
TEST(GpuDecoderTest, LikeliestTokensSampleLikeAllLogits) {
    const auto prompt = test::random_tokens(70, 256, 5);
    OnGpu by_list(test::tiny_package(), {.likeliest = true}), by_all(test::tiny_package());
    const SamplingOptions& sampling = sampling_kinds[0];
    EXPECT_EQ(by_list.sampled(prompt, sampling, {.max_tokens = 30}, AnswerEnd::length),
              by_all.sampled(prompt, sampling, {.max_tokens = 30}, AnswerEnd::length));
    EXPECT_FALSE(by_all.decoder->feed(std::span(prompt).first(1), StepLogits::likeliest).ok());
}

TEST(GpuDecoderTest, OversizedInputIsRefusedAndChangesNothing) {
    OnGpu model(test::tiny_package(), {.context_tokens = 128, .rows_max = 8});
    const auto ids = test::random_tokens(130, 256, 5);
    EXPECT_FALSE(model.decoder->feed(std::span(ids).first(9), StepLogits::none).ok());
    const std::vector<TokenId> foreign = {256};
    EXPECT_FALSE(model.decoder->feed(foreign, StepLogits::none).ok());
    EXPECT_EQ(model.decoder->num_tokens(), 0u);

    // The cache is full when the answer ends: its last token is chosen by the logits of the last
    // position.
    const auto answer = model.greedy(std::span(ids).first(120), {.max_tokens = 100},
                                     AnswerEnd::length);
    EXPECT_EQ(answer.size(), 9u);
    EXPECT_FALSE(model.decoder->feed(std::span(ids).first(1), StepLogits::none).ok());
}

}  // namespace
}  // namespace moex
