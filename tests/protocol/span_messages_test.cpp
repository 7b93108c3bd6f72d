#include "protocol/span_messages.h"

#include <functional>

#include "protocol/span_layer.h"
#include "tests/protocol/frame_samples.h"

namespace moex {
namespace {

constexpr std::size_t payload = frame_header_bytes;

SpanStep sample_step(Dtype dtype = Dtype::f32) {
    return {.step = 9,
            .span = 7,
            .dtype = dtype,
            .sequences = {{0x1122334455667788, 40, 2}, {5, 0, 1}},
            .x = exact_rows(3 * 32)};
}

SpanAnswer sample_answer() {
    SpanAnswer answer{.step = 9,
                      .span = 7,
                      .num_rows = 3,
                      .num_layers = 2,
                      .kv_size = 8,
                      .worker_us = 1234,
                      .x = exact_rows(3 * 32)};
    answer.kv.resize(span_kv_bytes(2, 3, 8));
    for (std::size_t i = 0; i < answer.kv.size(); ++i)
        answer.kv[i] = static_cast<std::byte>(i % 60);
    return answer;
}

SpanKv sample_kv() {
    SpanKv kv{.span = 7, .sequence = 5, .first = 40, .num_rows = 3, .num_layers = 2, .kv_size = 8};
    kv.rows = sample_answer().kv;
    return kv;
}

SpanAssign sample_assign() {
    SpanAssign assign{.span = 7,
                      .first_layer = 1,
                      .end_layer = 3,
                      .context_tokens = 4096,
                      .kv_bytes_max = 1ull << 33,
                      .layers = {{{}, 5000, {}}, {{}, 6000, {}}}};
    assign.layers[1].blob.fill(std::byte{0xab});
    assign.layers[1].signature.fill(std::byte{0xcd});
    return assign;
}

SpanState sample_state() {
    return {.span = 7,
            .sequence = 1ull << 40,
            .num_tokens = 40,
            .index = 1,
            .num_layers = 2,
            .floats = {1.5f, -2, 0, 3}};
}

TEST(SpanMessagesTest, EachComesBack) {
    const WireLimits limits = small_limits();
    const SpanAssign assign = sample_assign();
    const auto assigned = decode_span_assign(encode_span_assign(assign), limits);
    ASSERT_TRUE(assigned.ok()) << assigned.error().message;
    EXPECT_EQ(assigned->span, 7u);
    EXPECT_EQ(assigned->end_layer, 3u);
    EXPECT_EQ(assigned->kv_bytes_max, 1ull << 33);
    EXPECT_EQ(assigned->layers, assign.layers);

    EXPECT_EQ(decode_span_release(encode_span_release(7)).value(), 7u);
    const SpanReady ready{7, 100, 128, 64, 0, {10, 20, 30}};
    EXPECT_EQ(decode_span_ready(encode_span_ready(ready)).value(), ready);
    EXPECT_EQ(decode_span_ready(encode_span_ready({.span = 7})).value(), (SpanReady{.span = 7}));
    const SpanReady limited{7, 100, 128, 64, 5, {10, 20, 30}};
    EXPECT_EQ(decode_span_ready(encode_span_ready(limited)).value(), limited);

    for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
        const SpanStep step = sample_step(dtype);
        const auto got = decode_span_step(encode_span_step(step, 32), limits);
        ASSERT_TRUE(got.ok()) << got.error().message;
        EXPECT_EQ(got->step, 9u);
        EXPECT_EQ(got->sequences, step.sequences);
        EXPECT_EQ(got->x, step.x);
    }

    const SpanAnswer answer = sample_answer();
    const Bytes frame = encode_span_answer(answer, 32);
    EXPECT_EQ(frame.size(), span_answer_bytes(32, 3, 2 * 2 * 8));
    const auto answered = decode_span_answer(frame, limits);
    ASSERT_TRUE(answered.ok()) << answered.error().message;
    EXPECT_EQ(answered->x, answer.x);
    EXPECT_EQ(answered->kv, answer.kv);
    EXPECT_EQ(answered->worker_us, 1234u);

    const auto refused = decode_span_answer(
        encode_span_answer({.step = 3, .span = 7, .verdict = SpanVerdict::no_pages}, 32), limits);
    ASSERT_TRUE(refused.ok()) << refused.error().message;
    EXPECT_EQ(refused->verdict, SpanVerdict::no_pages);

    const auto kv = decode_span_kv(encode_span_kv(sample_kv()), limits);
    ASSERT_TRUE(kv.ok()) << kv.error().message;
    EXPECT_EQ(kv->first, 40u);
    EXPECT_EQ(kv->rows, sample_kv().rows);

    // A span whose second layer has a gated delta rule.
    SpanAnswer recurrent = sample_answer();
    recurrent.row_values = 2 * 8 + 5;
    recurrent.kv.assign(3 * recurrent.row_values * 2, std::byte{1});
    const auto with_inputs = decode_span_answer(encode_span_answer(recurrent, 32), limits);
    ASSERT_TRUE(with_inputs.ok()) << with_inputs.error().message;
    EXPECT_EQ(with_inputs->row_values, recurrent.row_values);
    EXPECT_EQ(with_inputs->kv, recurrent.kv);

    const auto state = decode_span_state(encode_span_state(sample_state()), limits);
    ASSERT_TRUE(state.ok()) << state.error().message;
    EXPECT_EQ(state->sequence, sample_state().sequence);
    EXPECT_EQ(state->num_tokens, 40u);
    EXPECT_EQ(state->index, 1u);
    EXPECT_EQ(state->num_layers, 2u);
    EXPECT_EQ(state->floats, sample_state().floats);

    const std::vector<std::uint64_t> ended{3, 1ull << 63};
    EXPECT_EQ(decode_span_end(encode_span_end(ended)).value(), ended);
}

TEST(SpanMessagesTest, TruncatedFramesAreRefused) {
    const WireLimits limits = small_limits();
    expect_truncations_refused(encode_span_assign(sample_assign()),
                               [&](ByteView f) { return decode_span_assign(f, limits); });
    expect_truncations_refused(encode_span_release(7), decode_span_release);
    expect_truncations_refused(encode_span_ready({7, 1, 1, 1, 0, {}}), decode_span_ready);
    expect_truncations_refused(encode_span_ready({7, 1, 1, 1, 2, {}}), decode_span_ready);
    expect_truncations_refused(encode_span_state(sample_state()),
                               [&](ByteView f) { return decode_span_state(f, limits); });
    expect_truncations_refused(encode_span_step(sample_step(), 32),
                               [&](ByteView f) { return decode_span_step(f, limits); });
    expect_truncations_refused(encode_span_answer(sample_answer(), 32),
                               [&](ByteView f) { return decode_span_answer(f, limits); });
    expect_truncations_refused(encode_span_kv(sample_kv()),
                               [&](ByteView f) { return decode_span_kv(f, limits); });
    expect_truncations_refused(encode_span_end({1, 2}), decode_span_end);
}

TEST(SpanMessagesTest, ResizedPayloadsAreRefused) {
    const WireLimits limits = small_limits();
    for (const std::ptrdiff_t change : {-4, -1, 1, 4}) {
        const auto refuses = [&](const auto& decode, const Bytes& frame) {
            EXPECT_EQ(verdict(decode(resized(frame, change))), "payload_size") << change;
        };
        refuses([&](ByteView f) { return decode_span_assign(f, limits); },
                encode_span_assign(sample_assign()));
        refuses(decode_span_release, encode_span_release(7));
        // The limit of sequences is a u32 more, which is not 0.
        const Bytes ready = encode_span_ready({7, 1, 1, 1, 0, {}});
        if (change == 4)
            EXPECT_EQ(verdict(decode_span_ready(resized(ready, 4))), "bad_field");
        else
            refuses(decode_span_ready, ready);
        if (change != -4) refuses(decode_span_ready, encode_span_ready({7, 1, 1, 1, 2, {}}));
        refuses([&](ByteView f) { return decode_span_step(f, limits); },
                encode_span_step(sample_step(), 32));
        refuses([&](ByteView f) { return decode_span_answer(f, limits); },
                encode_span_answer(sample_answer(), 32));
        refuses([&](ByteView f) { return decode_span_kv(f, limits); }, encode_span_kv(sample_kv()));
        refuses(decode_span_end, encode_span_end({1, 2}));
    }
}

TEST(SpanMessagesTest, DamagedStatesAreRefused) {
    const WireLimits limits = small_limits();
    const Bytes frame = encode_span_state(sample_state());
    const auto damaged = [&](std::size_t at, std::uint32_t value) {
        return verdict(decode_span_state(with_u32(frame, frame_header_bytes + at, value), limits));
    };
    for (const std::uint32_t tokens : {0u, (1u << 30) + 1})
        EXPECT_EQ(damaged(12, tokens), "bad_field");
    EXPECT_EQ(damaged(16, 2 | 2u << 16), "bad_field");  // index 2 of 2 layers
    EXPECT_EQ(damaged(16, 0), "bad_field");             // no layers
    EXPECT_EQ(damaged(16, 1 | 1000u << 16), "bad_field");
    EXPECT_EQ(damaged(20, 1), "bad_field");
    EXPECT_EQ(damaged(24, 0x7f800000), "non_finite");
    EXPECT_EQ(damaged(28, 0x7fc00000), "non_finite");
    for (const std::ptrdiff_t change : {-1, 1, -16})
        EXPECT_EQ(verdict(decode_span_state(resized(frame, change), limits)), "payload_size");
}

TEST(SpanMessagesTest, FieldsOutOfRangeAreRefused) {
    const WireLimits limits = small_limits();
    const auto assign = [&](std::size_t at, std::uint32_t value) {
        return verdict(decode_span_assign(
            with_u32(encode_span_assign(sample_assign()), payload + at, value), limits));
    };
    EXPECT_EQ(assign(4, 3), "bad_field");  // no layer
    EXPECT_EQ(assign(8, limits.num_layers + 1), "bad_field");
    EXPECT_EQ(assign(12, 0), "bad_field");  // context_tokens
    EXPECT_EQ(assign(24, 1), "bad_field");  // pad

    const auto step = [&](std::size_t at, std::uint32_t value) {
        return verdict(decode_span_step(
            with_u32(encode_span_step(sample_step(), 32), payload + at, value), limits));
    };
    EXPECT_EQ(step(12 + 12, 1), "bad_field");  // fewer rows than x has
    EXPECT_EQ(step(12 + 12, 0), "bad_field");
    EXPECT_EQ(step(12 + 8, 0xffffffff), "bad_field");  // num_before
    SpanStep twice = sample_step();
    twice.sequences[1].id = twice.sequences[0].id;
    EXPECT_EQ(verdict(decode_span_step(encode_span_step(twice, 32), limits)), "bad_order");
    const Bytes frame = encode_span_step(sample_step(), 32);
    EXPECT_EQ(verdict(decode_span_step(with_byte(frame, payload + 10, 4), limits)),
              "unknown_dtype");
    EXPECT_EQ(verdict(decode_span_step(with_byte(frame, payload + 11, 1), limits)), "bad_field");
    EXPECT_EQ(verdict(decode_span_step(with_u16(frame, payload + 8, 33), limits)), "bad_field");
    EXPECT_EQ(verdict(decode_span_step(with_u16(frame, payload + 6, 0), limits)),
              "num_tokens_range");

    const Bytes answer = encode_span_answer(sample_answer(), 32);
    EXPECT_EQ(verdict(decode_span_answer(with_byte(answer, payload + 4, 5), limits)), "bad_field");
    EXPECT_EQ(verdict(decode_span_answer(with_u16(answer, payload + 8, 5), limits)), "bad_field");
    EXPECT_EQ(
        verdict(decode_span_kv(with_u16(encode_span_kv(sample_kv()), payload + 18, 0), limits)),
        "bad_field");
    EXPECT_EQ(verdict(decode_span_end(with_u32(encode_span_end({1, 2}), payload, 0))), "bad_field");
    EXPECT_EQ(verdict(decode_span_ready(
                  with_u32(encode_span_ready({7, 1, 1, 1, {}}), payload + 12, span_rows_max + 1))),
              "bad_field");
}

TEST(SpanMessagesTest, InfinitiesAreRefused) {
    const WireLimits limits = small_limits();
    const Bytes step = encode_span_step(sample_step(), 32);
    EXPECT_EQ(verdict(decode_span_step(with_u32(step, step.size() - 4, 0x7f800000), limits)),
              "non_finite");
    const Bytes answer = encode_span_answer(sample_answer(), 32);
    EXPECT_EQ(verdict(decode_span_answer(with_u16(answer, answer.size() - 2, 0x7c00), limits)),
              "non_finite");
    const Bytes kv = encode_span_kv(sample_kv());
    EXPECT_EQ(verdict(decode_span_kv(with_u16(kv, kv.size() - 2, 0xfe00), limits)), "non_finite");
}

// A layer with every tensor, and the memory that its tensors borrow.
struct LayerSample {
    Bytes memory = Bytes(1 << 20, std::byte{3});
    SpanLayer layer{.layer = 2,
                    .hidden_size = 64,
                    .num_heads = 4,
                    .num_kv_heads = 2,
                    .head_dim = 16,
                    .num_experts = 3,
                    .top_k = 2,
                    .moe_intermediate_size = 32,
                    .group_size = 32,
                    .norm_topk_prob = true,
                    .qk_norm = true,
                    .qkv_bias = true,
                    .o_bias = true,
                    .router = SpanMatrix::f32,
                    .rms_norm_eps = 1e-6,
                    .rope_theta = 1e4,
                    .experts = std::vector<Sha256>(3)};
    LayerSample() { give_tensors(); }
    void give_tensors() {
        layer.experts[2].fill(std::byte{0xcd});
        const auto sizes = span_tensor_bytes(layer);
        for (std::size_t i = 0; i < sizes.size(); ++i)
            layer.tensors[i] = ByteView(memory).first(sizes[i]);
    }
};

TEST(SpanLayerTest, ComesBack) {
    const LayerSample sample;
    const Bytes bytes = encode_span_layer(sample.layer);
    const auto got = decode_span_layer(bytes);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_TRUE(same_span_shape(*got, sample.layer));
    EXPECT_EQ(got->layer, 2u);
    EXPECT_EQ(got->experts, sample.layer.experts);
    for (std::size_t i = 0; i < num_span_tensors; ++i)
        EXPECT_TRUE(std::ranges::equal(got->tensors[i], sample.layer.tensors[i])) << i;
    EXPECT_EQ(encode_span_layer(*got), bytes);
}

// A layer of gpt-oss's kind. Its header has 160 bytes.
LayerSample second_version() {
    LayerSample sample;
    SpanLayer& layer = sample.layer;
    layer.sinks = layer.router_bias = true;
    layer.window = 16;
    layer.rotary_size = 8;
    layer.attention_scale = 0.125f;
    layer.residual_multiplier = 0.5f;
    layer.expert_clamp = 7;
    layer.rope_scaling = {.factor = 32,
                          .original_context_tokens = 4096,
                          .kind = RopeScalingKind::yarn,
                          .beta_fast = 31,
                          .beta_slow = 2,
                          .attention_factor = 1.25,
                          .truncate = false};
    sample.give_tensors();
    return sample;
}

TEST(SpanLayerTest, EachFieldOfVersion2ComesBack) {
    const LayerSample sample = second_version();
    const Bytes bytes = encode_span_layer(sample.layer);
    EXPECT_EQ(bytes[4], std::byte{2});
    const auto got = decode_span_layer(bytes);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_TRUE(same_span_shape(*got, sample.layer));
    EXPECT_EQ(got->window, 16u);
    EXPECT_EQ(got->experts, sample.layer.experts);
    EXPECT_EQ(got->rope_scaling, sample.layer.rope_scaling);
    EXPECT_EQ(got->tensor(SpanTensor::sinks).size(), 4 * 4u);
    EXPECT_EQ(got->tensor(SpanTensor::router_bias).size(), 4 * 3u);
    EXPECT_EQ(encode_span_layer(*got), bytes);

    // Each field alone makes the second version, and no other layer has its shape.
    const auto alone = [](const std::function<void(SpanLayer&)>& change) {
        LayerSample changed;
        change(changed.layer);
        changed.give_tensors();
        EXPECT_EQ(span_layer_version(changed.layer), 2);
        const Bytes encoded = encode_span_layer(changed.layer);
        EXPECT_EQ(encode_span_layer(decode_span_layer(encoded).value()), encoded);
        return same_span_shape(changed.layer, LayerSample().layer);
    };
    EXPECT_TRUE(alone([](SpanLayer& layer) { layer.window = 1; }));
    EXPECT_FALSE(alone([](SpanLayer& layer) { layer.qk_norm_all_heads = true; }));
    EXPECT_FALSE(alone([](SpanLayer& layer) { layer.sinks = true; }));
    EXPECT_FALSE(alone([](SpanLayer& layer) { layer.router_bias = true; }));
    EXPECT_FALSE(alone([](SpanLayer& layer) { layer.rotary_size = 4; }));
    EXPECT_FALSE(alone([](SpanLayer& layer) { layer.attention_scale = 1; }));
    EXPECT_FALSE(alone([](SpanLayer& layer) { layer.residual_multiplier = 2; }));
    EXPECT_FALSE(alone([](SpanLayer& layer) { layer.expert_clamp = 7; }));
    EXPECT_FALSE(alone([](SpanLayer& layer) { layer.mxfp4_experts = true; }));
    EXPECT_FALSE(alone([](SpanLayer& layer) {
        layer.rope_scaling = {.factor = 2, .kind = RopeScalingKind::linear};
    }));
}

TEST(SpanLayerTest, DamagedVersion2IsRefused) {
    const Bytes bytes = encode_span_layer(second_version().layer);
    const auto damaged = [&](std::size_t at, std::uint32_t value) {
        return verdict(decode_span_layer(with_u32(bytes, at, value)));
    };
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 4, 4))), "unsupported_version");
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 4, 1))), "unknown_flags");
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 6, 256))), "unknown_flags");
    EXPECT_EQ(damaged(88, 0), "bad_field");  // original_context_tokens of yarn
    EXPECT_EQ(damaged(100, 6), "bad_field");
    EXPECT_EQ(damaged(100, 20), "bad_field");     // rotary_size beyond head_dim
    for (const std::size_t at : {104, 108, 112})  // scale, multiplier, clamp
        for (const std::uint32_t value : {0x7f800000u, 0x7fc00000u, 0xbf800000u})
            EXPECT_EQ(damaged(at, value), "bad_field") << at << ' ' << value;
    EXPECT_EQ(damaged(108, 0), "bad_field");
    EXPECT_EQ(damaged(116, 3), "bad_field");  // kind of the stretch
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 118, 2))), "bad_field");  // codes
    for (const std::size_t at : {120, 128, 136})
        EXPECT_EQ(damaged(at + 4, 0x7ff00000), "bad_field") << at;
    for (const std::size_t at : {144, 148, 152, 156}) EXPECT_EQ(damaged(at, 1), "bad_field") << at;

    // A layer that version 1 can describe has no second form.
    LayerSample plain;
    Bytes other = encode_span_layer(plain.layer);
    other[4] = std::byte{2};
    Bytes added(64);
    added[14] = std::byte{0x80};
    added[15] = std::byte{0x3f};  // residual_multiplier 1
    for (const std::size_t at : {24, 32, 40}) {
        added[at + 6] = std::byte{0xf0};
        added[at + 7] = std::byte{0x3f};  // 1.0
    }
    other.erase(other.begin() + 96 + 96, other.begin() + 96 + 96 + 64);
    other.insert(other.begin() + 96, added.begin(), added.end());
    const auto refused = decode_span_layer(other);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("version"), std::string::npos)
        << refused.error().message;
    for (std::size_t size : {std::size_t{96}, std::size_t{159}, bytes.size() - 4}) {
        const Bytes part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
        EXPECT_EQ(verdict(decode_span_layer(part)), "payload_size") << size;
    }
}

// A layer with everything that version 3 adds. Its header has 208 bytes.
LayerSample third_version() {
    LayerSample sample;
    SpanLayer& layer = sample.layer;
    layer.num_experts = 4;
    layer.experts.resize(4);
    layer.output_gate = true;
    layer.sigmoid_router = layer.correction_bias = true;
    layer.router_groups = 2;
    layer.groups_kept = 1;
    layer.router_scaling = 2.5f;
    layer.shared_size = 96;
    layer.shared_gate = true;
    layer.shared = SpanMatrix::f32;
    sample.give_tensors();
    return sample;
}

TEST(SpanLayerTest, EachFieldOfVersion3ComesBack) {
    const LayerSample sample = third_version();
    const Bytes bytes = encode_span_layer(sample.layer);
    EXPECT_EQ(bytes[4], std::byte{3});
    const auto got = decode_span_layer(bytes);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_TRUE(same_span_shape(*got, sample.layer));
    EXPECT_EQ(got->tensor(SpanTensor::correction_bias).size(), 4 * 4u);
    EXPECT_EQ(got->tensor(SpanTensor::router).size(), 4 * 5u * 64);
    EXPECT_EQ(got->tensor(SpanTensor::output_gate).size(), 2 * 64u * 64);
    EXPECT_EQ(got->tensor(SpanTensor::shared).size(), 4 * 3u * 96 * 64);
    EXPECT_EQ(encode_span_layer(*got), bytes);

    // These fields alone make the third version, and no other layer has its shape.
    const auto alone = [](const std::function<void(SpanLayer&)>& change) {
        LayerSample changed;
        change(changed.layer);
        changed.give_tensors();
        EXPECT_EQ(span_layer_version(changed.layer), 3);
        const Bytes encoded = encode_span_layer(changed.layer);
        EXPECT_EQ(encode_span_layer(decode_span_layer(encoded).value()), encoded);
        return same_span_shape(changed.layer, LayerSample().layer);
    };
    EXPECT_FALSE(alone([](SpanLayer& layer) { layer.output_gate = true; }));
    EXPECT_FALSE(alone([](SpanLayer& layer) { layer.sigmoid_router = true; }));
    EXPECT_FALSE(alone([](SpanLayer& layer) { layer.shared_size = 32; }));
    // The other fields belong to one of these.
    const auto differs = [&](const std::function<void(SpanLayer&)>& change) {
        LayerSample changed = third_version();
        change(changed.layer);
        changed.give_tensors();
        EXPECT_FALSE(same_span_shape(changed.layer, sample.layer));
    };
    differs([](SpanLayer& layer) { layer.correction_bias = false; });
    differs([](SpanLayer& layer) { layer.router_groups = 4; });
    differs([](SpanLayer& layer) { layer.groups_kept = 2; });
    differs([](SpanLayer& layer) { layer.router_scaling = 1; });
    differs([](SpanLayer& layer) { layer.shared_gate = false; });
    differs([](SpanLayer& layer) { layer.shared = SpanMatrix::bf16; });
}

// Layers of a model with gated delta rules: both kinds have one shape, and other tensors.
TEST(SpanLayerTest, LayersWithGatedDeltaRulesComeBack) {
    LayerSample attending;
    SpanLayer& layer = attending.layer;
    layer.delta_key_heads = 2;
    layer.delta_value_heads = 4;
    layer.delta_key_dim = 8;
    layer.delta_value_dim = 16;
    layer.conv_taps = 4;
    attending.give_tensors();
    LayerSample recurrent = attending;
    recurrent.layer.is_delta = true;
    recurrent.give_tensors();
    for (const LayerSample* one : {&attending, &recurrent}) {
        const Bytes bytes = encode_span_layer(one->layer);
        EXPECT_EQ(bytes[4], std::byte{3});
        const auto got = decode_span_layer(bytes);
        ASSERT_TRUE(got.ok()) << got.error().message;
        EXPECT_TRUE(same_span_shape(*got, attending.layer));
        EXPECT_EQ(got->is_delta, one->layer.is_delta);
        EXPECT_EQ(encode_span_layer(*got), bytes);
    }
    const SpanLayer& delta = recurrent.layer;
    EXPECT_EQ(delta.tensor(SpanTensor::qkv).size(), 2 * (2 * 2 * 8 + 2 * 64) * 64u);
    EXPECT_EQ(delta.tensor(SpanTensor::o).size(), 2 * 64 * 64u);
    EXPECT_EQ(delta.tensor(SpanTensor::delta_conv).size(), 4 * 96 * 4u);
    EXPECT_EQ(delta.tensor(SpanTensor::delta_gates).size(), 4 * 8 * 64u);
    EXPECT_EQ(delta.tensor(SpanTensor::q_norm).size(), 0u);
    EXPECT_EQ(layer.tensor(SpanTensor::delta_conv).size(), 0u);
    EXPECT_NE(layer.tensor(SpanTensor::q_norm).size(), 0u);

    // Damage each size: key heads, value heads, their sizes, taps.
    const Bytes bytes = encode_span_layer(delta);
    for (std::size_t at = 180; at < 200; at += 4)
        for (const std::uint32_t value : {0u, 3u, 9u, 0xffffffffu})
            EXPECT_FALSE(decode_span_layer(with_u32(bytes, at, value)).ok()) << at << ' ' << value;
}

TEST(SpanLayerTest, DamagedVersion3IsRefused) {
    const Bytes bytes = encode_span_layer(third_version().layer);
    const auto damaged = [&](std::size_t at, std::uint32_t value) {
        return verdict(decode_span_layer(with_u32(bytes, at, value)));
    };
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 4, 2))), "unknown_flags");
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 6, 8192))), "unknown_flags");
    for (const std::uint32_t groups : {0u, 3u, 8u}) EXPECT_EQ(damaged(160, groups), "bad_field");
    for (const std::uint32_t kept : {0u, 3u}) EXPECT_EQ(damaged(164, kept), "bad_field");
    EXPECT_EQ(damaged(160, 4), "bad_field");  // one group of one expert for two choices
    for (const std::uint32_t value : {0u, 0x7f800000u, 0x7fc00000u, 0xbf800000u})
        EXPECT_EQ(damaged(168, value), "bad_field") << value;
    for (const std::uint32_t width : {0u, 24u, 0xfffffff0u})
        EXPECT_EQ(damaged(172, width), "bad_field") << width;
    EXPECT_EQ(damaged(172, 64), "payload_size");
    EXPECT_EQ(damaged(176, 3), "bad_field");
    for (std::size_t at = 180; at < 208; at += 4) EXPECT_EQ(damaged(at, 1), "bad_field") << at;
    for (std::size_t size : {std::size_t{160}, std::size_t{207}, bytes.size() - 4}) {
        const Bytes part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
        EXPECT_EQ(verdict(decode_span_layer(part)), "payload_size") << size;
    }
    // Fields of a sigmoid router beside another router.
    const unsigned flags = std::to_integer<unsigned>(bytes[6]) +
                           256 * std::to_integer<unsigned>(bytes[7]);
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 6, flags & ~512u))), "bad_field");
}

TEST(SpanLayerTest, DamagedLayersAreRefused) {
    const LayerSample sample;
    const Bytes bytes = encode_span_layer(sample.layer);
    EXPECT_EQ(verdict(decode_span_layer(with_byte(bytes, 0, 0))), "bad_magic");
    EXPECT_EQ(bytes[4], std::byte{1});
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 4, 0))), "unsupported_version");
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 4, 4))), "unsupported_version");
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 6, 16))), "unknown_flags");
    for (const std::size_t at : {12, 16, 20, 24, 28, 32, 36, 40})  // sizes
        for (const std::uint32_t value : {0u, 33u, 0xffffffffu})
            EXPECT_FALSE(decode_span_layer(with_u32(bytes, at, value)).ok()) << at << ' ' << value;
    EXPECT_EQ(verdict(decode_span_layer(with_byte(bytes, 44, 3))), "bad_field");
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 46, 1))), "bad_field");
    EXPECT_EQ(verdict(decode_span_layer(with_u16(bytes, 48 + 6, 0x7ff0))), "bad_field");
    EXPECT_EQ(verdict(decode_span_layer(with_byte(bytes, 96 + 3 * 32, 1))), "bad_field");  // pad
    for (std::size_t size : {std::size_t{0}, std::size_t{3}, std::size_t{95}, bytes.size() - 4}) {
        const Bytes part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
        EXPECT_FALSE(decode_span_layer(part).ok()) << size;
    }
    Bytes longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_EQ(verdict(decode_span_layer(longer)), "payload_size");
}

}  // namespace
}  // namespace moex
