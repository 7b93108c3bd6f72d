// Pages of keys and values that leave one decoder and continue a text in another, on a Vulkan
// device (lavapipe if there is no GPU): the bits are those of a text that was computed as a whole,
// and a page of another source is refused.
#include "web-worker/local/local_pages.h"

#include <cstring>
#include <random>
#include <set>

#include "hub/base/sha256.h"
#include "hub/commands/gpu/package_weights.h"
#include "hub/engine/decoder.h"
#include "hub/engine/local_experts.h"
#include "hub/model/pack/packer.h"
#include "protocol/kv_translate.h"
#include "tests/hub/engine/engine_fixture.h"
#include "tests/support/must.h"
#include "tests/support/posted_loop.h"
#include "tests/support/repository.h"
#include "web-worker/decoder/gpu_decoder.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/local/gpu_sequence.h"

namespace moex {
namespace {

using test::must;
using Origin = PageShelf::Origin;
using Taken = PageShelf::Taken;
using Tokens = std::vector<std::uint32_t>;

Sha256 hash_of(std::span<const std::uint32_t> tokens) { return sha256(std::as_bytes(tokens)); }

// A model on the GPU with the pages of its one sequence.
class Device {
  public:
    Device(const std::shared_ptr<const ModelPackage>& package, KvKind kind)
        : device_(must(gpu::open_vulkan_device({}, loop_.poster()))) {
        const DecoderModel model = must(decoder_model_of(*package));
        PackageWeights weights(package, model);
        bool finished = false;
        GpuDecoder::create(*device_, model, {.kv_kind = kind}, weights,
                           [&](Result<std::unique_ptr<GpuDecoder>> made) {
                               decoder = must(std::move(made));
                               finished = true;
                           });
        if (!finished) loop_.run_until(finished);
        source = local_kv_source(package->config(), kind, hash_of(Tokens{1}), hash_of(Tokens{2}));
        sequence.emplace(*decoder);
        pages = std::make_unique<LocalPages>(*sequence, source);
    }

    void feed(std::span<const std::uint32_t> tokens) {
        while (!tokens.empty()) {
            const auto chunk = tokens.first(std::min<std::size_t>(tokens.size(), 64));
            tokens = tokens.subspan(chunk.size());
            EXPECT_TRUE(decoder->feed(chunk, StepLogits::last).ok());
        }
    }
    std::vector<float> logits() {
        std::vector<float> row;
        bool finished = false;
        decoder->read_logits([&](Result<std::span<const float>> read) {
            const auto values = must(std::move(read));
            row.assign(values.begin(), values.end());
            finished = true;
        });
        loop_.run_until(finished);
        return row;
    }
    Bytes page(std::span<const std::uint32_t> tokens, std::uint32_t index) {
        Bytes bytes;
        bool finished = false;
        pages->read(tokens, index, KvPart::whole, before(tokens, index), [&](Result<Bytes> read) {
            bytes = must(std::move(read));
            finished = true;
        });
        if (!finished) loop_.run_until(finished);
        return bytes;
    }
    static Sha256 before(std::span<const std::uint32_t> tokens, std::uint32_t index) {
        return hash_of(tokens.first(std::size_t{index} * kv_page_tokens));
    }

  private:
    test::PostedLoop loop_;
    std::unique_ptr<gpu::Device> device_;

  public:
    std::unique_ptr<GpuDecoder> decoder;
    std::optional<GpuSequence> sequence;
    KvSource source;
    std::unique_ptr<LocalPages> pages;
};

Tokens text_of(std::uint32_t num_tokens, std::uint32_t vocab_size) {
    Tokens tokens;
    for (std::uint32_t i = 0; i < num_tokens; ++i) tokens.push_back((i * 37 + i / 7) % vocab_size);
    return tokens;
}

class LocalPagesTest : public ::testing::Test {
  protected:
    LocalPagesTest() : folder_("local-pages") {
        PackOptions options;
        options.expert_dtype = ExpertDtype::bf16;
        must(pack_checkpoint(repository() / "tests/golden/qwen3-tiny", folder_.path() / "package",
                             options, test::compute_threads(), {}));
        package = must(ModelPackage::open(folder_.path() / "package"));
    }

    test::TemporaryFolder folder_;
    std::shared_ptr<const ModelPackage> package;
};

void expect_same_bits(std::span<const float> a, std::span<const float> b) {
    ASSERT_EQ(a.size(), b.size());
    ASSERT_FALSE(a.empty());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0);
}

TEST_F(LocalPagesTest, ATextContinuesAfterItsPagesWithTheSameBits) {
    for (const KvKind kind : {KvKind::f32, KvKind::f16, KvKind::u8}) {
        Device first(package, kind), second(package, kind);
        const Tokens text = text_of(200, first.decoder->model().vocab_size);
        first.feed(text);
        const auto wanted = first.logits();

        second.pages->begin(text, 0);
        EXPECT_EQ(second.pages->take(Origin::here, Device::before(text, 0), first.page(text, 0)),
                  Taken::wholly);
        EXPECT_EQ(second.pages->first_page(), 1u);
        EXPECT_EQ(second.pages->take(Origin::here, Device::before(text, 1), first.page(text, 1)),
                  Taken::partly);
        EXPECT_EQ(second.pages->num_held(), 200u);
        second.decoder->resume(199);
        second.feed(std::span(text).last(1));
        expect_same_bits(second.logits(), wanted);
    }
}

TEST_F(LocalPagesTest, AnEditedTextUsesThePagesBeforeTheEdit) {
    Device first(package, KvKind::f32), second(package, KvKind::f32);
    const Tokens text = text_of(200, first.decoder->model().vocab_size);
    Tokens edited(text.begin(), text.begin() + 180);
    edited[150] = (edited[150] + 1) % first.decoder->model().vocab_size;
    first.feed(text);
    const Bytes whole = first.page(text, 0), part = first.page(text, 1);
    const Bytes less = first.page(std::span(text).first(140), 1);

    second.pages->begin(edited, 0);
    EXPECT_EQ(second.pages->take(Origin::here, Device::before(text, 0), whole), Taken::wholly);
    EXPECT_EQ(second.pages->take(Origin::here, Device::before(text, 1), part), Taken::partly);
    EXPECT_EQ(second.pages->num_held(), 150u);
    EXPECT_EQ(second.pages->take(Origin::here, Device::before(text, 1), less), Taken::partly);
    EXPECT_EQ(second.pages->num_held(), 150u) << "a shorter beginning is not taken";
    second.decoder->resume(150);
    second.feed(std::span(edited).subspan(150));
    const auto found = second.logits();
    first.decoder->rewind(0);
    first.feed(edited);
    expect_same_bits(found, first.logits());
}

using Change = std::function<void(KvPage&)>;

// Returns a change for each field of a page's header.
std::vector<std::pair<const char*, Change>> header_changes(ByteView some_bytes) {
    return {
        {"model", [](KvPage& p) { p.source.model[5] ^= std::byte{1}; }},
        {"texts", [](KvPage& p) { p.source.texts[5] ^= std::byte{1}; }},
        {"arithmetic", [](KvPage& p) { p.source.arithmetic = KvArithmetic::exact; }},
        {"weights", [](KvPage& p) { p.source.weights = KvWeights::int8; }},
        {"rounding", [](KvPage& p) { p.source.rounding = KvRounding::f16; }},
        {"rotary_size", [](KvPage& p) { p.source.rotary_size -= 2; }},
        {"rope_base", [](KvPage& p) { p.source.rope_base += 1; }},
        {"rope factor", [](KvPage& p) { p.source.rope_scaling.factor += 1; }},
        {"rope low", [](KvPage& p) { p.source.rope_scaling.low_freq_factor += 1; }},
        {"rope high", [](KvPage& p) { p.source.rope_scaling.high_freq_factor += 1; }},
        {"rope context", [](KvPage& p) { p.source.rope_scaling.original_context_tokens += 1; }},
        {"norm_epsilon", [](KvPage& p) { p.source.norm_epsilon *= 2; }},
        {"window", [](KvPage& p) { p.source.window += 64; }},
        {"page_tokens", [](KvPage& p) { p.source.page_tokens *= 2; }},
        {"layers",
         [](KvPage& p) {
             p.source.first_layer += 1;
             p.source.end_layer += 1;
         }},
        {"heads",
         [](KvPage& p) {
             p.source.num_kv_heads *= 2;
             p.source.head_dim /= 2;
             p.source.rotary_size /= 2;
         }},
        {"before", [](KvPage& p) { p.before[0] ^= std::byte{1}; }},
        {"first_position", [](KvPage& p) { p.first_position = kv_page_tokens; }},
        {"workers", [](KvPage& p) { p.workers = {"somebody"}; }},
        {"state", [some_bytes](KvPage& p) { p.state = some_bytes.first(4); }},
    };
}

TEST_F(LocalPagesTest, APageThatDiffersInAnyFieldIsRefused) {
    Device device(package, KvKind::f32);
    const Tokens text = text_of(130, device.decoder->model().vocab_size);
    device.feed(text);
    const Bytes bytes = device.page(text, 0);
    const KvPage page = must(decode_kv_page(bytes));
    const Sha256 before = Device::before(text, 0);
    Origin origin = Origin::here;
    const auto taken = [&](const KvPage& altered, const Sha256& wanted) {
        device.pages->begin(text, 0);
        const Taken how = device.pages->take(origin, wanted, encode_kv_page(altered));
        EXPECT_EQ(device.pages->num_held(), how == Taken::refused ? 0u : kv_page_tokens);
        return how;
    };
    ASSERT_EQ(taken(page, before), Taken::wholly);

    const auto changes = header_changes(bytes);
    for (const auto& [name, change] : changes) {
        KvPage altered = page;
        change(altered);
        EXPECT_EQ(taken(altered, before), Taken::refused) << name;
    }
    EXPECT_EQ(taken(page, Device::before(text, 1)), Taken::refused) << "the page of another text";

    // A page of the hub may be of another arithmetic, and of nothing else.
    origin = Origin::hub;
    const std::set<std::string> hubs = {"arithmetic", "weights", "rounding"};
    for (const auto& [name, change] : changes) {
        KvPage altered = page;
        change(altered);
        EXPECT_EQ(taken(altered, before), hubs.contains(name) ? Taken::wholly : Taken::refused)
            << name;
    }

    for (const std::size_t at : {0u, 5u, 8u, 12u, 20u, 40u, 400u, 2000u}) {
        Bytes damaged = bytes;
        damaged[at] ^= std::byte{1};
        device.pages->begin(text, 0);
        EXPECT_EQ(device.pages->take(Origin::here, before, damaged), Taken::refused)
            << "byte " << at;
    }
    device.pages->begin(text, 0);
    EXPECT_EQ(device.pages->take(Origin::here, before, ByteView(bytes).first(bytes.size() - 4)),
              Taken::refused);
}

// The pages of a text as a hub computes them on its cores, in exact arithmetic.
std::vector<OwnedKvPage> pages_of_hub(const std::shared_ptr<const ModelPackage>& package,
                                      const Tokens& text, const KvSource& like) {
    const auto decoder = must(Decoder::create(package, test::compute_threads()));
    LocalExperts experts(package, test::compute_threads(), {.deterministic = true});
    KvCache cache(package->config(), {.num_pages = 64});
    KvCache::Sequence sequence(cache);
    const auto num_tokens = static_cast<std::uint32_t>(text.size());
    EXPECT_TRUE(sequence.reserve(num_tokens));
    const StepRows rows{.kv = &sequence, .tokens = text};
    EXPECT_TRUE(decoder->step(std::span(&rows, 1), experts).ok());

    KvSource source = like;
    source.arithmetic = KvArithmetic::exact;
    source.row_type = KvRowType::f32;
    source.page_tokens = sequence.page_tokens();
    std::vector<Bytes> memory;
    std::vector<KvPage> small;
    for (std::uint32_t i = 0; (i + 1) * source.page_tokens <= num_tokens; ++i) {
        memory.emplace_back(kv_rows_bytes(source, source.page_tokens));
        EXPECT_TRUE(sequence.read_page(i, memory.back()).ok());
    }
    for (std::uint32_t i = 0; i < memory.size(); ++i) {
        const std::uint32_t first = i * source.page_tokens;
        const auto tokens = std::span(text).subspan(first, source.page_tokens);
        small.push_back({.source = source,
                         .before = hash_of(std::span(text).first(first)),
                         .first_position = first,
                         .tokens = {tokens.begin(), tokens.end()},
                         .rows = memory[i]});
    }
    return must(resize_kv_pages(small, kv_page_tokens, [&](std::uint32_t count) {
        return hash_of(std::span(text).first(count));
    }));
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        largest = std::max(largest, std::abs(double{a[i]} - double{b[i]}));
    return largest;
}

// A device goes on from pages of the hub. The logits differ by what the arithmetics differ, and by
// the rounding of the rows; the bounds are twice to four times the differences that were measured.
TEST_F(LocalPagesTest, ADeviceGoesOnFromPagesOfTheHub) {
    struct Form {
        const char* name;
        KvRowType type;
        double bound;
    };
    const Form forms[] = {
        {"f32", KvRowType::f32, 1e-4}, {"f16", KvRowType::f16, 2e-3}, {"u8", KvRowType::u8, 3e-2}};
    Device alone(package, KvKind::f32);
    const Tokens text = text_of(200, alone.decoder->model().vocab_size);
    alone.feed(text);
    const auto wanted = alone.logits();
    const auto pages = pages_of_hub(package, text, alone.source);
    for (const auto& [name, form, bound] : forms) {
        Device device(package, KvKind::f32);
        device.pages->begin(text, 0);
        for (const OwnedKvPage& page : pages)
            EXPECT_NE(
                device.pages->take(Origin::hub, page.page.before,
                                   encode_kv_page(must(convert_kv_rows(page.page, form)).page)),
                Taken::refused);
        ASSERT_EQ(device.pages->num_held(), 192u);
        EXPECT_EQ(device.pages->num_own(200), 0u) << "such rows are not kept as this device's";
        device.decoder->resume(192);
        device.feed(std::span(text).last(8));
        const double difference = largest_difference(device.logits(), wanted);
        EXPECT_LT(difference, bound);
        RecordProperty(std::string("difference_") + name, std::to_string(difference));
        device.pages->begin(text, 0);
        EXPECT_EQ(device.pages->num_own(200), 200u) << "all of it is computed again";
    }
}

// No byte of a stream may be altered: the page is refused, and nothing of it reaches the GPU.
TEST_F(LocalPagesTest, ThousandMutationsOfAHubsPageAreRefused) {
    Device device(package, KvKind::f32);
    const Tokens text = text_of(130, device.decoder->model().vocab_size);
    const auto pages = pages_of_hub(package, text, device.source);
    const Bytes bytes = encode_kv_page(
        must(convert_kv_rows(pages.front().page, KvRowType::f16)).page);
    const Sha256 before = pages.front().page.before;
    std::mt19937 random(41);
    for (int i = 0; i < 1000; ++i) {
        Bytes damaged = bytes;
        const std::size_t at = random() % damaged.size();
        switch (i % 4) {
            case 0: damaged[at] ^= static_cast<std::byte>(1 + random() % 255); break;
            case 1: damaged.resize(at); break;
            case 2:
                damaged.insert(damaged.begin() + static_cast<std::ptrdiff_t>(at), std::byte{7});
                break;
            case 3: damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>(at)); break;
        }
        device.pages->begin(text, 0);
        ASSERT_EQ(device.pages->take(Origin::hub, before, damaged), Taken::refused)
            << "mutation " << i << " at byte " << at;
        ASSERT_EQ(device.pages->num_held(), 0u);
    }
    device.pages->begin(text, 0);
    EXPECT_EQ(device.pages->take(Origin::hub, before, bytes), Taken::wholly);
}

}  // namespace
}  // namespace moex
