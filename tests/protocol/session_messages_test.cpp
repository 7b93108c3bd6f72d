// Tests the messages with a JSON payload: HELLO and its short form in a first HEARTBEAT, WELCOME,
// HUBS, ASSIGN and ERROR.
#include "protocol/json.h"
#include "tests/protocol/frame_samples.h"

namespace moex {
namespace {

Hello sample_hello() {
    Hello hello;
    hello.token = "token-1";
    hello.device = {"webgpu", "nvidia",   "ampere",   "a GPU",
                    true,     1ull << 40, 1ull << 32, (1ull << 31) - 4};
    hello.dtypes = {Dtype::f16, Dtype::f32};
    hello.lz4 = false;
    hello.caps = {"group", "proof"};
    hello.kernel_version = "k1";
    hello.nickname = "Ada ❤";
    hello.client = "tab 0.1.0";
    hello.worker_key = "5f0c";
    hello.arithmetic = WorkerArithmetic::int8;
    hello.speed = {2048, 768, {2'500, 2'900, 15'000}, 760'000};
    hello.span_bytes = 5ull << 30;
    hello.span_kv_bytes = 1ull << 30;
    return hello;
}

Welcome sample_welcome() {
    Welcome welcome;
    welcome.worker_id = 0xfedcba9876543210;
    welcome.model_name = "demo";
    welcome.package_sha256 = std::string(64, 'a');
    welcome.limits = {384, 6, 16, 512, 4096};
    welcome.expert_shape = {384, 256, 128};
    welcome.top_k = 4;
    welcome.expert_blob_bytes = 156'672;
    welcome.dtype = Dtype::bf16;
    welcome.lz4 = true;
    welcome.heartbeat_ms = 1500;
    welcome.queue_depth = 3;
    welcome.weights_path = "/w/";
    welcome.caps = {"budget"};
    welcome.arithmetic = WorkerArithmetic::exact;
    welcome.nonce = "5f0c";
    welcome.hub = "0a1b2c3d";
    welcome.hubs = {{"11111111", "https://one.example"}, {"22222222", "http://[::1]:8080"}};
    return welcome;
}

// Returns a copy of `frame` after the function `change` has changed its JSON payload.
template <class Change>
Bytes changed(const Bytes& frame, FrameType type, Change change) {
    Json json = Json::parse(as_text_view(ByteView(frame).subspan(frame_header_bytes)));
    change(json);
    return frame_of(type, json.dump());
}

TEST(HelloTest, ComesBack) {
    const Hello sent = sample_hello();
    const auto got = decode_hello(encode_hello(sent));
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(got->token, sent.token);
    EXPECT_EQ(got->device.backend, "webgpu");
    EXPECT_EQ(got->device.vendor, "nvidia");
    EXPECT_EQ(got->device.architecture, "ampere");
    EXPECT_EQ(got->device.description, "a GPU");
    EXPECT_TRUE(got->device.software);
    EXPECT_EQ(got->device.budget_bytes, 1ull << 40);
    EXPECT_EQ(got->device.max_buffer_bytes, 1ull << 32);
    EXPECT_EQ(got->device.max_binding_bytes, (1ull << 31) - 4);
    EXPECT_EQ(got->dtypes, sent.dtypes);
    EXPECT_FALSE(got->lz4);
    EXPECT_EQ(got->caps, sent.caps);
    EXPECT_EQ(got->kernel_version, "k1");
    EXPECT_EQ(got->nickname, "Ada ❤");
    EXPECT_EQ(got->client, "tab 0.1.0");
    EXPECT_EQ(got->worker_key, "5f0c");
    EXPECT_EQ(got->arithmetic, WorkerArithmetic::int8);
    EXPECT_EQ(got->speed.hidden_size, 2048u);
    EXPECT_EQ(got->speed.moe_intermediate_size, 768u);
    EXPECT_EQ(got->speed.expert_ns, sent.speed.expert_ns);
    EXPECT_EQ(got->speed.read_mb_s, 760'000u);
    EXPECT_EQ(got->span_bytes, 5ull << 30);
    EXPECT_EQ(got->span_kv_bytes, 1ull << 30);
}

TEST(HelloTest, LongAndBrokenStringsStillFitAndDecode) {
    for (const char fill : {'x', '\x01', '"', '\xff'}) {
        Hello hello = sample_hello();
        for (std::string* text : {&hello.token, &hello.device.vendor, &hello.device.architecture,
                                  &hello.device.description, &hello.kernel_version, &hello.nickname,
                                  &hello.client, &hello.worker_key})
            *text = std::string(5000, fill);
        const Bytes frame = encode_hello(hello);
        EXPECT_LE(frame.size(), hello_bytes_max);
        EXPECT_TRUE(decode_hello(frame).ok()) << decode_hello(frame).error().message;
    }
}

TEST(HelloTest, OnlyVersionsAreRequired) {
    const auto got = decode_hello(
        frame_of(FrameType::hello,
                 R"({"versions":[1,9],"later":{"deep":[1]},"dtypes":["f8","f16","int4"]})"));
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(got->version_max, 9);
    EXPECT_EQ(got->dtypes, std::vector<Dtype>{Dtype::f16});
    EXPECT_TRUE(got->caps.empty());
    EXPECT_FALSE(got->lz4);
}

TEST(HelloTest, BadHellosAreRefused) {
    const Bytes frame = encode_hello(sample_hello());
    expect_truncations_refused(frame, [](ByteView bytes) { return decode_hello(bytes); });
    const auto with = [&](const char* path, Json value) {
        return verdict(decode_hello(changed(
            frame, FrameType::hello, [&](Json& json) { json[Json::json_pointer(path)] = value; })));
    };
    EXPECT_EQ(with("/versions", Json::array({2, 3})), "unsupported_version");
    EXPECT_EQ(with("/versions", Json::array({0, 0})), "unsupported_version");
    EXPECT_EQ(with("/versions", Json::array({2, 1})), "bad_field");
    EXPECT_EQ(with("/versions", Json::array({1, 70000})), "bad_field");
    EXPECT_EQ(with("/versions", Json::array({1})), "bad_field");
    EXPECT_EQ(with("/versions", Json::array({-1, 1})), "bad_field");
    EXPECT_EQ(with("/versions", "1"), "bad_field");
    EXPECT_EQ(with("/token", 7), "bad_field");
    EXPECT_EQ(with("/token", std::string(1025, 't')), "bad_field");
    EXPECT_EQ(with("/token", "a\nb"), "bad_field");
    EXPECT_EQ(with("/device", "gpu"), "bad_field");
    EXPECT_EQ(with("/device/software", 1), "bad_field");
    EXPECT_EQ(with("/device/budget_bytes", -5), "bad_field");
    EXPECT_EQ(with("/device/budget_bytes", 1.5), "bad_field");
    EXPECT_EQ(with("/device/backend", std::string(33, 'b')), "bad_field");
    EXPECT_EQ(with("/dtypes", Json::array()), "bad_field");
    EXPECT_EQ(with("/dtypes", Json::array({"int4"})), "bad_field");
    EXPECT_EQ(with("/dtypes", Json::array({1})), "bad_field");
    EXPECT_EQ(with("/caps", "group"), "bad_field");
    EXPECT_EQ(with("/caps", std::vector<std::string>(33, "c")), "bad_field");
    EXPECT_EQ(with("/lz4", "yes"), "bad_field");
    EXPECT_EQ(with("/arithmetic", "int16"), "bad_field");
    EXPECT_EQ(with("/arithmetic", 8), "bad_field");
    EXPECT_EQ(with("/nickname", std::string(25, 'n')), "bad_field");
    EXPECT_EQ(with("/nickname", std::string(24, 'n')), "ok");
    EXPECT_EQ(with("/speed", "fast"), "bad_field");
    EXPECT_EQ(with("/speed/read_mb_s", -1), "bad_field");
    EXPECT_EQ(with("/speed/expert_ns", Json::array({1, 2})), "bad_field");
    EXPECT_EQ(with("/speed/expert_ns", Json::array({1, 2.5, 3})), "bad_field");
    EXPECT_EQ(with("/speed", Json::object()), "ok");

    for (const char* json : {"", "{", "[]", "null", "\"versions\"", "{\"versions\":[1,1]} x",
                             "{\"a\":\"\xff\"}", "{'a':1}", "{\"a\":1,}"})
        EXPECT_EQ(verdict(decode_hello(frame_of(FrameType::hello, json))), "bad_json") << json;
    EXPECT_EQ(verdict(decode_hello(frame_of(FrameType::hello, "{}"))), "bad_field");
    const std::string deep = "{\"versions\":[1,1],\"a\":" + std::string(1500, '[') +
                             std::string(1500, ']') + "}";
    EXPECT_EQ(verdict(decode_hello(frame_of(FrameType::hello, deep))), "bad_json");
    EXPECT_EQ(verdict(decode_hello(frame_of(FrameType::hello,
                                            "{\"versions\":[1,1]" + std::string(4081, ' ') + "}"))),
              "payload_size");
    EXPECT_EQ(verdict(decode_hello(encode_heartbeat(0, "{\"versions\":[1,1]}"))), "unknown_type");
}

TEST(CapabilitiesTest, AFirstHeartbeatNeedsNoField) {
    const auto empty = decode_capabilities(encode_heartbeat(0, "{}"));
    ASSERT_TRUE(empty.ok());
    EXPECT_EQ(empty->dtypes, std::vector<Dtype>{Dtype::f16});

    const auto full = decode_capabilities(encode_heartbeat(
        0, R"({"device":{"vendor":"v"},"token":"t","caps":["group"],"lz4":true})"));
    ASSERT_TRUE(full.ok());
    EXPECT_EQ(full->device.vendor, "v");
    EXPECT_TRUE(full->token.empty());
    EXPECT_TRUE(full->caps.empty());
    EXPECT_TRUE(full->lz4);
    EXPECT_EQ(verdict(decode_capabilities(encode_heartbeat(0))), "bad_json");
    EXPECT_EQ(verdict(decode_capabilities(encode_heartbeat(0, R"({"device":[]})"))), "bad_field");
}

TEST(WelcomeTest, ComesBack) {
    const Welcome sent = sample_welcome();
    const auto got = decode_welcome(encode_welcome(sent));
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(got->worker_id, sent.worker_id);
    EXPECT_EQ(got->model_name, "demo");
    EXPECT_EQ(got->package_sha256, sent.package_sha256);
    EXPECT_EQ(got->limits.hidden_size, 384u);
    EXPECT_EQ(got->limits.num_layers, 6u);
    EXPECT_EQ(got->limits.num_experts, 16u);
    EXPECT_EQ(got->limits.num_tokens_max, 512u);
    EXPECT_EQ(got->limits.num_pairs_max, 4096u);
    EXPECT_EQ(got->expert_shape, sent.expert_shape);
    EXPECT_EQ(got->top_k, 4u);
    EXPECT_EQ(got->expert_blob_bytes, 156'672u);
    EXPECT_EQ(got->dtype, Dtype::bf16);
    EXPECT_TRUE(got->lz4);
    EXPECT_EQ(got->heartbeat_ms, 1500u);
    EXPECT_EQ(got->queue_depth, 3u);
    EXPECT_EQ(got->weights_path, "/w/");
    EXPECT_EQ(got->caps, sent.caps);
    EXPECT_EQ(got->arithmetic, WorkerArithmetic::exact);
    EXPECT_EQ(got->nonce, sent.nonce);
    EXPECT_EQ(got->hub, sent.hub);
    EXPECT_EQ(got->hubs, sent.hubs);

    Welcome of_an_older_hub = sent;
    of_an_older_hub.hub.clear();
    of_an_older_hub.hubs.clear();
    EXPECT_TRUE(decode_welcome(encode_welcome(of_an_older_hub))->hub.empty());
    EXPECT_TRUE(decode_welcome(encode_welcome(of_an_older_hub))->hubs.empty());
    of_an_older_hub.arithmetic.reset();
    of_an_older_hub.nonce.clear();
    EXPECT_FALSE(decode_welcome(encode_welcome(of_an_older_hub))->arithmetic.has_value());
    EXPECT_TRUE(decode_welcome(encode_welcome(of_an_older_hub))->nonce.empty());
}

// gpt-oss's experts: the clamp keeps all its bits, and a blob has biases.
TEST(WelcomeTest, ClampedExpertsComeBack) {
    Welcome sent = sample_welcome();
    sent.expert_shape.has_bias = true;
    for (const float clamp : {7.0f, 0.1f, 1e-45f, 3.4028235e38f}) {
        sent.expert_shape.clamp = clamp;
        sent.expert_blob_bytes = expert_blob_layout(sent.expert_shape).size_bytes;
        EXPECT_EQ(sent.expert_blob_bytes, 156'672u + 2048 + 1536);
        const auto got = decode_welcome(encode_welcome(sent));
        ASSERT_TRUE(got.ok()) << got.error().message;
        EXPECT_EQ(got->expert_shape, sent.expert_shape);
    }

    const Bytes frame = encode_welcome(sent);
    const auto with = [&](Json value) {
        return verdict(decode_welcome(changed(
            frame, FrameType::welcome, [&](Json& json) { json["model"]["clamp_bits"] = value; })));
    };
    EXPECT_EQ(with(0), "bad_field");
    EXPECT_EQ(with(0x7f800000u), "bad_field");  // infinity
    EXPECT_EQ(with(0xbf800000u), "bad_field");  // -1
    EXPECT_EQ(with(7.0), "bad_field");          // a number with a fraction
    EXPECT_EQ(with("7"), "bad_field");
    // A worker that does not know the field finds a blob of another size.
    EXPECT_EQ(
        verdict(decode_welcome(changed(frame, FrameType::welcome,
                                       [](Json& json) { json["model"].erase("clamp_bits"); }))),
        "bad_field");
}

TEST(WelcomeTest, ExpertsInMxfp4ComeBack) {
    Welcome sent = sample_welcome();
    sent.expert_shape.codes = ExpertDtype::mxfp4;
    sent.expert_shape.group_size = mxfp4_block;
    sent.expert_blob_bytes = expert_blob_layout(sent.expert_shape).size_bytes;
    // 17 bytes for each 32 weights
    EXPECT_EQ(sent.expert_blob_bytes, 3u * 384 * 256 / 32 * 17);
    const Bytes frame = encode_welcome(sent);
    const auto got = decode_welcome(frame);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(got->expert_shape, sent.expert_shape);

    const auto with = [&](const char* key, Json value) {
        return verdict(decode_welcome(
            changed(frame, FrameType::welcome, [&](Json& json) { json["model"][key] = value; })));
    };
    EXPECT_EQ(with("codes", "bf16"), "bad_field");
    EXPECT_EQ(with("codes", "nf4"), "bad_field");
    EXPECT_EQ(with("codes", 4), "bad_field");
    EXPECT_EQ(with("group_size", 64), "bad_field");
    // A worker that does not know the field finds a blob of another size.
    EXPECT_EQ(verdict(decode_welcome(changed(frame, FrameType::welcome,
                                             [](Json& json) { json["model"].erase("codes"); }))),
              "bad_field");
}

TEST(WelcomeTest, BadWelcomesAreRefused) {
    const Bytes frame = encode_welcome(sample_welcome());
    expect_truncations_refused(frame, [](ByteView bytes) { return decode_welcome(bytes); });
    const auto with = [&](const char* path, Json value) {
        return verdict(decode_welcome(changed(frame, FrameType::welcome, [&](Json& json) {
            json[Json::json_pointer(path)] = value;
        })));
    };
    EXPECT_EQ(with("/version", 2), "bad_field");
    EXPECT_EQ(with("/model", 1), "bad_field");
    EXPECT_EQ(with("/model/hidden_size", 0), "bad_field");
    EXPECT_EQ(with("/model/hidden_size", 65536), "bad_field");
    // 400 is no multiple of the group size
    EXPECT_EQ(with("/model/hidden_size", 400), "bad_field");
    EXPECT_EQ(with("/model/num_layers", 0), "bad_field");
    EXPECT_EQ(with("/model/num_experts", 70000), "bad_field");
    EXPECT_EQ(with("/model/top_k", 17), "bad_field");
    EXPECT_EQ(with("/model/group_size", 96), "bad_field");
    EXPECT_EQ(with("/model/moe_intermediate_size", 1u << 21), "bad_field");
    EXPECT_EQ(with("/model/expert_blob_bytes", 156'673), "bad_field");
    EXPECT_EQ(with("/arithmetic", "fast"), "bad_field");
    EXPECT_EQ(with("/nonce", std::string(129, 'a')), "bad_field");
    EXPECT_EQ(with("/nonce", "a\nb"), "bad_field");
    for (const char* id : {"0A1B2C3D", "0a1b2c3", "0a1b2c3d4", "0a1b2c3/"}) {
        EXPECT_EQ(with("/hub", id), "bad_field");
        EXPECT_EQ(with("/hubs/0/id", id), "bad_field");
    }
    EXPECT_EQ(with("/hubs", Json::object()), "bad_field");
    EXPECT_EQ(with("/hubs/1", "22222222"), "bad_field");
    EXPECT_EQ(with("/hubs/1/address", 1), "bad_field");
    EXPECT_EQ(with("/hubs/1/address", std::string(257, 'a')), "bad_field");
    EXPECT_EQ(with("/model/package_sha256", "zz"), "bad_field");
    EXPECT_EQ(with("/limits/num_tokens_max", 0), "bad_field");
    EXPECT_EQ(with("/limits/num_tokens_max", 65536), "bad_field");
    EXPECT_EQ(with("/limits", nullptr), "bad_field");
    EXPECT_EQ(with("/dtype", "int4"), "bad_field");
    EXPECT_EQ(with("/dtype", "f8"), "unknown_dtype");
    EXPECT_EQ(with("/heartbeat_ms", 0), "bad_field");
    EXPECT_EQ(with("/queue_depth", 0), "bad_field");

    for (const char* path : {"version", "worker_id", "model", "limits", "dtype"})
        EXPECT_EQ(verdict(decode_welcome(
                      changed(frame, FrameType::welcome, [&](Json& json) { json.erase(path); }))),
                  "bad_field")
            << path;
}

TEST(AssignTest, ComesBackUpToItsMaximum) {
    WireLimits limits = small_limits();
    limits.num_layers = 64;
    std::vector<AssignedUnit> sent(512);
    for (std::size_t i = 0; i < sent.size(); ++i) {
        sent[i].layer = static_cast<std::uint16_t>(i / 8);
        sent[i].expert = static_cast<std::uint16_t>(i % 8);
        sent[i].blob[0] = static_cast<std::byte>(i);
    }
    const Bytes frame = encode_assign(sent, 7);
    EXPECT_LE(frame.size(), unauthenticated_frame_bytes_max);

    const auto got = decode_assign(frame, limits);
    ASSERT_TRUE(got.ok()) << got.error().message;
    ASSERT_EQ(got->units.size(), sent.size());
    EXPECT_EQ(got->num_later, 7u);

    for (std::size_t i = 0; i < sent.size(); ++i) {
        EXPECT_EQ(got->units[i].layer, sent[i].layer);
        EXPECT_EQ(got->units[i].expert, sent[i].expert);
        EXPECT_EQ(got->units[i].blob, sent[i].blob);
    }
    EXPECT_EQ(verdict(decode_assign(frame, small_limits())), "unknown_expert");
}

TEST(AssignTest, BadAssignsAreRefused) {
    const std::string hash(64, '0');
    const auto refused = [](const std::string& json) {
        return verdict(decode_assign(frame_of(FrameType::assign, json), small_limits()));
    };
    EXPECT_EQ(refused(R"({"units":[]})"), "ok");
    EXPECT_EQ(refused(R"({})"), "bad_field");
    EXPECT_EQ(refused(R"({"units":{}})"), "bad_field");
    EXPECT_EQ(refused(R"({"units":[1]})"), "bad_field");
    EXPECT_EQ(refused(R"({"units":[[0,0]]})"), "bad_field");
    EXPECT_EQ(refused(R"({"units":[[0,0,"ab"]]})"), "bad_field");
    EXPECT_EQ(refused(R"({"units":[[-1,0,")" + hash + R"("]]})"), "bad_field");
    EXPECT_EQ(refused(R"({"units":[[65536,0,")" + hash + R"("]]})"), "bad_field");
    EXPECT_EQ(refused(R"({"units":[[4,0,")" + hash + R"("]]})"), "unknown_expert");
    EXPECT_EQ(refused(R"({"units":[[0,8,")" + hash + R"("]]})"), "unknown_expert");
    EXPECT_EQ(refused(R"({"units":[[0,0,")" + hash + R"("]]})"), "ok");
    EXPECT_EQ(refused(R"({"units":[],"later":32})"), "ok");
    // `later` exceeds the 4 x 8 experts
    EXPECT_EQ(refused(R"({"units":[],"later":33})"), "bad_field");
    EXPECT_EQ(refused(R"({"units":[],"later":-1})"), "bad_field");

    std::string many = R"({"units":[0)";
    for (int i = 0; i < 512; ++i) many += ",0";
    EXPECT_EQ(refused(many + "]}"), "bad_field");
    EXPECT_EQ(refused("{\"units\":[]" + std::string(70000, ' ') + "}"), "bad_json");
}

TEST(HelloTest, SlotBytesAreSentOnlyWithAStore) {
    Hello sent;
    EXPECT_EQ(decode_hello(encode_hello(sent))->device.slot_bytes, 0u);
    sent.device.budget_bytes = 900;
    sent.device.slot_bytes = 40;
    sent.device.store_bytes = 900;
    const Result<Hello> got = decode_hello(encode_hello(sent));
    EXPECT_EQ(got->device.slot_bytes, 40u);
    EXPECT_EQ(got->device.store_bytes, 900u);
}

TEST(WelcomeTest, MoreHubsThanFitAreLeftOut) {
    Welcome sent = sample_welcome();
    sent.hubs.assign(hub_places_max + 1, {"11111111", "https://one.example"});
    const Bytes frame = encode_welcome(sent);
    EXPECT_EQ(decode_welcome(frame)->hubs.size(), hub_places_max);
    EXPECT_EQ(verdict(decode_welcome(
                  changed(frame, FrameType::welcome,
                          [](Json& json) { json["hubs"].push_back(json["hubs"][0]); }))),
              "bad_field");
}

TEST(HubsTest, ComesBackAndBadOnesAreRefused) {
    const HubPlace hub{"0a1b2c3d", "https://hub.example/moex"};
    for (const HubsChange& sent :
         {HubsChange{}, HubsChange{{hub, hub}, false}, HubsChange{{hub}, true}})
        EXPECT_EQ(decode_hubs(encode_hubs(sent)).value(), sent);
    const Bytes frame = encode_hubs({{hub}, true});
    expect_truncations_refused(frame, decode_hubs);
    EXPECT_EQ(verdict(decode_hubs(encode_hubs({{}, true}))), "bad_field");
    EXPECT_EQ(verdict(decode_hubs(encode_hubs({{{"0a1b2c3", "https://x"}}, false}))), "bad_field");
    EXPECT_EQ(verdict(decode_hubs(encode_drain(50))), "unknown_type");
    EXPECT_EQ(verdict(decode_hubs(changed(frame, FrameType::hubs,
                                          [](Json& json) { json["hubs"][0].erase("address"); }))),
              "bad_field");
    EXPECT_EQ(
        verdict(decode_hubs(changed(frame, FrameType::hubs, [](Json& json) { json["move"] = 1; }))),
        "bad_field");
}

TEST(HubsTest, NeedsComeBackAndBadOnesAreRefused) {
    const HubNeed need{.units = 96, .missing = 40, .thin = 56, .workers = 2, .streams = 7};
    const HubsChange sent{{{"0a1b2c3d", "https://hub.example", need}}, false};
    const Bytes frame = encode_hubs(sent);
    EXPECT_EQ(decode_hubs(frame).value(), sent);
    const auto with_need = [&](auto change) {
        return verdict(decode_hubs(
            changed(frame, FrameType::hubs, [&](Json& json) { change(json["hubs"][0]["need"]); })));
    };
    EXPECT_EQ(with_need([](Json& json) { json["more"] = 1; }), "ok") << "a later field";
    EXPECT_EQ(with_need([](Json& json) { json.erase("thin"); }), "ok") << "0";
    EXPECT_EQ(with_need([](Json& json) { json = 5; }), "bad_field");
    EXPECT_EQ(with_need([](Json& json) { json["workers"] = -1; }), "bad_field");
    EXPECT_EQ(with_need([](Json& json) { json["streams"] = 1ull << 32; }), "bad_field");
    EXPECT_EQ(with_need([](Json& json) { json["missing"] = 41; }), "bad_field");

    Welcome welcome = sample_welcome();
    welcome.hub = "0a1b2c3d";
    welcome.need = need;
    EXPECT_EQ(decode_welcome(encode_welcome(welcome))->need, need);
}

TEST(ErrorTest, ComesBackAndIsShortened) {
    const ErrorMessage sent{41, "unknown_expert", "expert", "200", "0..127", true};
    const auto got = decode_error(encode_error(sent));
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(got->sequence_id, 41u);
    EXPECT_EQ(got->code, sent.code);
    EXPECT_EQ(got->field, sent.field);
    EXPECT_EQ(got->found, sent.found);
    EXPECT_EQ(got->wanted, sent.wanted);
    EXPECT_TRUE(got->fatal);

    for (const std::string fill : {"x", "\x01", "\"", "\xff", "é"}) {
        ErrorMessage longer = sent;
        for (std::string* text : {&longer.code, &longer.field, &longer.found, &longer.wanted}) {
            text->clear();
            for (int i = 0; i < 3000; ++i) *text += fill;
        }
        const Bytes frame = encode_error(longer);
        EXPECT_LE(frame.size(), frame_header_bytes + error_json_bytes_max);
        EXPECT_TRUE(decode_error(frame).ok()) << decode_error(frame).error().message;
    }
}

TEST(ErrorTest, BadErrorsAreRefused) {
    const auto refused = [](const std::string& json) {
        return verdict(decode_error(frame_of(FrameType::error, json)));
    };
    EXPECT_EQ(refused(R"({"code":"x"})"), "ok");
    EXPECT_EQ(refused(R"({})"), "bad_field");
    EXPECT_EQ(refused(R"({"code":1})"), "bad_field");
    EXPECT_EQ(refused(R"({"code":"x","fatal":"no"})"), "bad_field");
    EXPECT_EQ(refused("{\"code\":\"x\"" + std::string(1024, ' ') + "}"), "bad_json");
}

TEST(CloseCodeTest, BadFramesAre1002AndBadTokens1008) {
    EXPECT_EQ(close_code_for(ErrorCode::bad_magic), CloseCode::protocol_error);
    EXPECT_EQ(close_code_for(ErrorCode::unsupported_version), CloseCode::protocol_error);
    EXPECT_EQ(close_code_for(ErrorCode::bad_json), CloseCode::protocol_error);
    EXPECT_EQ(close_code_for(ErrorCode::unauthorized), CloseCode::policy);
    EXPECT_EQ(close_code_for(ErrorCode::unavailable), CloseCode::going_away);
}

}  // namespace
}  // namespace moex
