// Tests that a package that stores the hub's matrices as codes gives the same results as a bf16
// package that is rounded to codes when it is loaded.
#include <cstring>

#include "hub/engine/decoder_weights.h"
#include "hub/model/pack/packer.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/support/checkpoint_builder.h"

namespace moex {
namespace {

std::shared_ptr<const ModelPackage> opened(const std::filesystem::path& folder) {
    auto package = ModelPackage::open(folder);
    if (!package.ok()) throw std::runtime_error(package.error().message);
    return *package;
}

class HubCodesTest : public testing::Test {
  protected:
    std::shared_ptr<const ModelPackage> synthetic(ModelConfig config, HubDtype dtype) {
        const auto out = folder_.path() / text("synth-", next_++);
        const auto report = synth_package(config, "tiny", 7, out, {.hub_dtype = dtype},
                                          test::compute_threads(), {});
        if (!report.ok()) throw std::runtime_error(report.error().message);
        return opened(out);
    }
    // Returns embeddings that codes of 8 bits represent exactly: values of at most 127 steps of
    // 2^-9, and the maximum occurs in each group.
    std::shared_ptr<const ModelPackage> of_checkpoint(HubDtype dtype) {
        const auto in = folder_.path() / "checkpoint";
        if (!std::filesystem::exists(in)) {
            test::CheckpointBuilder builder({.mlp_only_layers = {}});
            std::vector<float>& table = builder.tensor("model.embed_tokens.weight").values;
            for (std::size_t i = 0; i < table.size(); ++i) {
                const auto steps = static_cast<int>(i * 7919 % 255) - 127;
                table[i] = static_cast<float>(i % 32 == 5 ? 127 : steps) * 0x1p-9f;
            }
            builder.write(in);
        }
        const auto out = folder_.path() / text("packed-", next_++);
        const auto report = pack_checkpoint(in, out, {.hub_dtype = dtype}, test::compute_threads(),
                                            {});
        if (!report.ok()) throw std::runtime_error(report.error().message);
        return opened(out);
    }
    static std::vector<float> logits(const std::shared_ptr<const ModelPackage>& package,
                                     DecoderOptions options) {
        auto decoder = Decoder::create(package, test::compute_threads(), options);
        if (!decoder.ok()) throw std::runtime_error(decoder.error().message);
        LocalExperts experts(package, test::compute_threads(), {}, options.arithmetic);
        KvCache cache(package->config(), {5, 400});
        KvCache::Sequence sequence(cache);
        const auto ids = test::random_tokens(33, package->config().vocab_size, 5);
        const StepRows rows{.kv = &sequence, .tokens = ids, .all_logits = true};
        auto step = (*decoder)->step({&rows, 1}, experts);
        if (!step.ok()) throw std::runtime_error(step.error().message);
        return std::move(step->logits);
    }
    static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
        return a.size() == b.size() && !a.empty() &&
               std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    }

    const test::TemporaryFolder folder_{"hub-codes"};
    int next_ = 0;
};

// The models have dense layers, too, and one of them has tied embeddings, which are also the LM
// head.
TEST_F(HubCodesTest, PanelsEqualTheBf16PackageRoundedAtLoad) {
    for (const bool tied : {true, false}) {
        ModelConfig config = test::tiny_config();
        config.tied_embeddings = tied;
        const auto plain = synthetic(config, HubDtype::bf16);
        for (const auto& [hub, packed] : {std::pair(HubDtype::int8, PackedDtype::int8),
                                          std::pair(HubDtype::int4, PackedDtype::int4)}) {
            SCOPED_TRACE(text(hub_dtype_name(hub), tied ? ", tied" : ""));
            const auto codes = synthetic(config, hub);
            const auto wanted = load_decoder_weights(*plain, Arithmetic::int8, packed,
                                                     test::compute_threads());
            const auto found = load_decoder_weights(*codes, Arithmetic::int8, packed,
                                                    test::compute_threads());
            ASSERT_TRUE(wanted.ok() && found.ok());

            const auto compare = [](const HubMatrix& a, const HubMatrix& b) {
                EXPECT_EQ(a.packed.dtype, b.packed.dtype);
                ASSERT_EQ(a.packed.size_bytes(), b.packed.size_bytes());
                EXPECT_EQ(std::memcmp(a.packed.data, b.packed.data, a.packed.size_bytes()), 0);
            };
            if (packed == PackedDtype::int8) compare(found->head, wanted->head);
            for (std::size_t i = 0; i < wanted->layers.size(); ++i) {
                const DecoderLayer &a = found->layers[i], &b = wanted->layers[i];
                const bool is_moe = config.is_moe(static_cast<std::uint32_t>(i));
                for (const auto matrix :
                     {&DecoderLayer::q, &DecoderLayer::k, &DecoderLayer::v, &DecoderLayer::o})
                    compare(a.*matrix, b.*matrix);
                for (const auto matrix :
                     {&DecoderLayer::gate, &DecoderLayer::up, &DecoderLayer::down})
                    if (!is_moe) compare(a.*matrix, b.*matrix);
            }
        }
    }
}

TEST_F(HubCodesTest, AnswersEqualTheBf16PackageBitForBit) {
    const auto plain = of_checkpoint(HubDtype::bf16);
    const auto int8 = logits(plain,
                             {.arithmetic = Arithmetic::int8, .hub_dtype = PackedDtype::int8});
    EXPECT_TRUE(
        same_bits(logits(of_checkpoint(HubDtype::int8), {.arithmetic = Arithmetic::int8}), int8));

    // A package with codes of 4 bits keeps these codes, and its head of 8 bits, whatever dtype is
    // requested.
    const auto codes = of_checkpoint(HubDtype::int4);
    const auto int4 = logits(codes, {.arithmetic = Arithmetic::int8});
    EXPECT_FALSE(same_bits(int8, int4));
    for (const PackedDtype asked : {PackedDtype::int4, PackedDtype::int6, PackedDtype::int8})
        EXPECT_TRUE(
            same_bits(logits(codes, {.arithmetic = Arithmetic::int8, .hub_dtype = asked}), int4));
}

TEST_F(HubCodesTest, Bf16RoundsTo6BitsAndInt8OnlyOnRequest) {
    const DecoderOptions by_default{.arithmetic = Arithmetic::int8},
        to_6{.arithmetic = Arithmetic::int8, .hub_dtype = PackedDtype::int6},
        to_8{.arithmetic = Arithmetic::int8, .hub_dtype = PackedDtype::int8};
    const auto plain = of_checkpoint(HubDtype::bf16), codes = of_checkpoint(HubDtype::int8);
    const auto of_6 = logits(plain, to_6);
    EXPECT_TRUE(same_bits(logits(plain, by_default), of_6));
    EXPECT_FALSE(same_bits(logits(plain, to_8), of_6));
    EXPECT_FALSE(same_bits(logits(codes, by_default), logits(codes, to_6)));
}

// Exact arithmetic multiplies with the dequantised codes. So int8 arithmetic differs from it only
// by the rounding of rows.
TEST_F(HubCodesTest, ExactArithmeticUsesTheDequantizedCodes) {
    const auto far = [](const std::vector<float>& a, const std::vector<float>& b) {
        double difference = 0, size = 0;
        for (std::size_t i = 0; i < a.size(); ++i) {
            difference += (a[i] - b[i]) * (a[i] - b[i]);
            size += b[i] * b[i];
        }
        return std::sqrt(difference / size);
    };
    const auto plain = logits(of_checkpoint(HubDtype::bf16), {});
    for (const auto& [dtype, rounded_max] :
         {std::pair(HubDtype::int8, 0.02), std::pair(HubDtype::int4, 0.2)}) {
        SCOPED_TRACE(hub_dtype_name(dtype));
        const auto package = of_checkpoint(dtype);
        const auto exact = logits(package, {});
        EXPECT_FALSE(same_bits(exact, plain));
        EXPECT_LE(far(exact, plain), rounded_max);
        EXPECT_LE(far(logits(package, {.arithmetic = Arithmetic::int8}), exact), 0.05);
    }
}

TEST_F(HubCodesTest, MatricesOf8BitsCanBeRoundedAgainTo4) {
    const DecoderOptions to_4{.arithmetic = Arithmetic::int8, .hub_dtype = PackedDtype::int4};
    const auto package = of_checkpoint(HubDtype::int8);
    const auto once = logits(of_checkpoint(HubDtype::int4), to_4), twice = logits(package, to_4);
    EXPECT_FALSE(same_bits(twice, logits(package, {.arithmetic = Arithmetic::int8})));
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < once.size(); ++i) {
        difference += (twice[i] - once[i]) * (twice[i] - once[i]);
        size += once[i] * once[i];
    }
    EXPECT_LE(std::sqrt(difference / size), 0.1);
}

}  // namespace
}  // namespace moex
