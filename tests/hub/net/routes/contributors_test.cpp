// Tests of contributors: honest and false signatures over a real socket, the work that is counted
// for a contributor, access to the totals, and the deletion of a contributor's data.
#include "hub/net/contributors.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>

#include <nlohmann/json.hpp>

#include "hub/net/routes/routes.h"
#include "protocol/messages.h"
#include "tests/hub/net/hub_fixture.h"
#include "tests/hub/net/raw_client.h"

namespace moex::net {
namespace {

using nlohmann::json;

class Signer {
  public:
    Signer() : key_(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), EVP_PKEY_free) {
        std::size_t size = public_key.size();
        EVP_PKEY_get_raw_public_key(key_.get(), reinterpret_cast<unsigned char*>(public_key.data()),
                                    &size);
    }
    Signature sign(const std::string& text) const {
        Signature signature{};
        std::size_t size = signature.size();
        const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                         EVP_MD_CTX_free);
        EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_.get());
        EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                       reinterpret_cast<const unsigned char*>(text.data()), text.size());
        return signature;
    }
    Identity identity(const std::string& text, bool shows = false) const {
        return {public_key, sign(text), shows};
    }
    std::string hex() const { return to_hex(public_key); }

    PublicKey public_key{};

  private:
    std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key_;
};

std::string hex_of(const Signature& signature) {
    std::string hex;
    for (const std::byte byte : signature) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(byte));
        hex += digits;
    }
    return hex;
}

// A worker's connection, up to WELCOME.
struct Contributor {
    Contributor(TestHub& hub, const std::string& worker_key) : client(hub.port()) {
        Hello hello;
        hello.token = hub.token();
        hello.nickname = "Ada";
        hello.worker_key = worker_key;
        EXPECT_TRUE(client.upgrade(hub.port(), hub.page_origin()));
        client.send_frame(op_binary, as_string(encode_hello(hello)));
        const auto answer = decode_welcome(as_byte_view(client.read_frame().payload));
        EXPECT_TRUE(answer.ok());
        if (answer.ok()) welcome = *answer;
    }
    void say(const Bytes& frame) { client.send_frame(op_binary, as_string(frame)); }
    // Returns the next ERROR frame; frames of other types are skipped.
    std::optional<ErrorMessage> read_error() {
        for (;;) {
            const RawFrame frame = client.read_frame();
            if (frame.opcode != op_binary) return std::nullopt;
            const auto error = decode_error(as_byte_view(frame.payload));
            if (error.ok()) return *error;
        }
    }
    RawClient client;
    Welcome welcome;
};

class ContributorsTest : public testing::Test {
  protected:
    std::string text_for(const Welcome& welcome) const {
        return identity_text(welcome.nonce, origin_, welcome.worker_id);
    }
    RawResponse get(const std::string& path) {
        return fetch(hub_.port(), "GET", path, hub_.bearer());
    }
    json mine(const Signer& signer) {
        return json::parse(get("/api/contributors?key=" + signer.hex()).body)["mine"];
    }
    bool is_known(const Signer& signer) { return !mine(signer).is_null(); }

    TestHub hub_;
    // The hub's origin, as RawClient names it in the Host header.
    const std::string origin_ = "http://127.0.0.1:" + std::to_string(hub_.port());
    Signer signer_;
};

TEST_F(ContributorsTest, ASignedWorkerIsKnownByItsKeyAndShownByItsNicknameOnlyIfItsOwnerWants) {
    Contributor lender(hub_, "one");
    ASSERT_EQ(lender.welcome.nonce.size(), 64u);
    EXPECT_FALSE(is_known(signer_));
    lender.say(encode_identity(signer_.identity(text_for(lender.welcome))));
    ASSERT_TRUE(eventually([&] { return is_known(signer_); }));
    EXPECT_EQ(mine(signer_)["nickname"], "");

    lender.say(encode_identity(signer_.identity(text_for(lender.welcome), true)));
    EXPECT_TRUE(eventually([&] { return mine(signer_)["nickname"] == "Ada"; }));
    lender.say(encode_identity(signer_.identity(text_for(lender.welcome), false)));
    EXPECT_TRUE(eventually([&] { return mine(signer_)["nickname"] == ""; }));
}

TEST_F(ContributorsTest, SignatureOfAnotherConnectionIsRefusedAndWorkerStays) {
    Contributor lender(hub_, "one"), other(hub_, "two");
    EXPECT_NE(lender.welcome.nonce, other.welcome.nonce);
    const Welcome& own = lender.welcome;
    Identity bent = signer_.identity(text_for(own));
    bent.signature[5] ^= std::byte{1};
    Identity borrowed = signer_.identity(text_for(own));
    borrowed.public_key = Signer().public_key;

    const std::pair<const char*, Identity> bad[] = {
        {"a bent signature", bent},
        {"another's key", borrowed},
        {"another connection's nonce, replayed", signer_.identity(text_for(other.welcome))},
        {"another worker's id",
         signer_.identity(identity_text(own.nonce, origin_, other.welcome.worker_id))},
        {"another hub's origin",
         signer_.identity(identity_text(own.nonce, "http://evil.example", own.worker_id))},
        {"another scheme",
         signer_.identity(identity_text(own.nonce, "https" + origin_.substr(4), own.worker_id))},
        {"a text of another purpose", signer_.identity(forget_text(own.nonce, origin_))},
        {"zeros for a signature", Identity{.public_key = signer_.public_key}}};
    for (const auto& [what, identity] : bad) {
        SCOPED_TRACE(what);
        lender.say(encode_identity(identity));
        const auto error = lender.read_error();
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code, "unauthorized");
        EXPECT_EQ(error->field, "identity");
        EXPECT_FALSE(error->fatal);
    }
    EXPECT_FALSE(is_known(signer_));

    // The connection stays open, and a correct signature is still accepted.
    lender.say(encode_identity(signer_.identity(text_for(own))));
    EXPECT_TRUE(eventually([&] { return is_known(signer_); }));
}

TEST_F(ContributorsTest, AFrameThatIsNoneEndsTheConnection) {
    const auto expect_1002 = [&](const char* what, const std::function<void(Contributor&)>& act) {
        SCOPED_TRACE(what);
        Contributor lender(hub_, what);
        act(lender);
        const auto error = lender.read_error();
        ASSERT_TRUE(error);
        EXPECT_TRUE(error->fatal);
        EXPECT_EQ(lender.client.read_close().close_code(), 1002);
    };
    const auto of_bytes = [](std::size_t bytes) {
        ByteWriter out;
        begin_frame(out, FrameType::identity, 0);
        out.grow(bytes);
        return finish_frame(std::move(out));
    };
    expect_1002("one byte more", [&](Contributor& l) { l.say(of_bytes(identity_bytes + 1)); });
    expect_1002("oversized", [&](Contributor& l) { l.say(of_bytes(60'000)); });
    expect_1002("empty", [&](Contributor& l) { l.say(of_bytes(0)); });
    expect_1002("unknown flags", [&](Contributor& l) {
        Bytes frame = of_bytes(identity_bytes);
        frame[frame_header_bytes + 96] = std::byte{2};
        l.say(frame);
    });
    expect_1002("again and again", [&](Contributor& l) {
        const Bytes good = encode_identity(signer_.identity(text_for(l.welcome)));
        for (int i = 0; i < 65; ++i) l.say(good);
    });
    EXPECT_TRUE(hub_.healthy());
}

TEST_F(ContributorsTest, OnlyTheJoinTokenOpensTheBoardAlsoOnLoopback) {
    const auto bearer = [](const std::string& key) {
        return "Authorization: Bearer " + key + "\r\n";
    };
    const std::string api = hub_.registry().create_key(Role::api, "api").value();
    std::size_t num_asked = 0;
    for (const RouteInfo& route : server_routes()) {
        if (!route.is_join) continue;
        SCOPED_TRACE(route.path);
        const std::string type = route.method == "POST" ? "Content-Type: application/json\r\n" : "";
        const auto ask = [&](const std::string& lines) {
            return fetch(hub_.port(), route.method, route.path, lines + type,
                         route.method == "POST" ? "{}" : "")
                .status;
        };
        EXPECT_EQ(ask(""), 401u);
        EXPECT_EQ(ask(bearer(api)), 401u);
        EXPECT_EQ(ask(bearer("wrong")), 401u);
        EXPECT_EQ(ask(hub_.bearer() + "Origin: https://evil.example\r\n"), 403u);
        const unsigned status = ask(hub_.bearer() + hub_.page_origin());
        EXPECT_TRUE(status == 200 || status == 400) << status;
        ++num_asked;
    }
    EXPECT_EQ(num_asked, 3u);
    EXPECT_EQ(get("/api/contributors?key=xyz").status, 400u);
}

TEST_F(ContributorsTest, OnlyTheHolderOfTheKeyIsForgotten) {
    Contributor lender(hub_, "one");
    const Bytes frame = encode_identity(signer_.identity(text_for(lender.welcome)));
    lender.say(frame);
    ASSERT_TRUE(eventually([&] { return is_known(signer_); }));

    const std::string challenge = json::parse(get("/api/contributors").body)["challenge"];
    const auto forget = [&](const std::string& key, const std::string& over,
                            const Signature& signature) {
        const json body{{"key", key}, {"challenge", over}, {"signature", hex_of(signature)}};
        return fetch(hub_.port(), "POST", "/api/contributors/forget",
                     hub_.bearer() + "Content-Type: application/json\r\n", body.dump())
            .status;
    };
    const std::string wanted = forget_text(challenge, origin_);
    EXPECT_EQ(forget(signer_.hex(), challenge, Signer().sign(wanted)), 403u);
    EXPECT_EQ(forget(signer_.hex(), challenge, signer_.sign(text_for(lender.welcome))), 403u);
    EXPECT_EQ(forget(signer_.hex(), challenge, signer_.sign(forget_text(challenge, "http://x"))),
              403u);
    EXPECT_EQ(forget(signer_.hex(), "old", signer_.sign(forget_text("old", origin_))), 409u);
    EXPECT_EQ(forget("ab", challenge, signer_.sign(wanted)), 400u);
    EXPECT_TRUE(is_known(signer_));

    EXPECT_EQ(forget(signer_.hex(), challenge, signer_.sign(wanted)), 200u);
    EXPECT_FALSE(is_known(signer_));
}

TEST_F(ContributorsTest, MissingExpertsAreListedForHoldersOfTheLink) {
    const json lend = json::parse(get("/api/lend").body);
    const ModelConfig& config = hub_.package().config();
    EXPECT_EQ(lend["units"], config.num_layers * config.num_experts);
    EXPECT_EQ(lend["held"], 0);
    EXPECT_EQ(lend["workers"], 0);
    EXPECT_EQ(lend["expert_blob_bytes"], 156'672);
    ASSERT_EQ(lend["scarce"].size(), 3u);
    EXPECT_EQ(lend["scarce"][0], (json{{"layer", 0}, {"missing", 16}, {"copies", 32}}));
}

WorkerView view_of(WorkerId id, std::uint64_t pairs, std::uint64_t credited) {
    WorkerView view;
    view.id = id;
    view.nickname = text("worker ", id);
    view.pairs_answered = pairs;
    view.pairs_credited = credited;
    return view;
}

// Two tabs share one identity, a third tab has a second identity, and a fourth tab has none.
TEST_F(ContributorsTest, TabsOfOneIdentityAddUpAndWhatTheyDidBeforeIsCountedOnce) {
    Registry& registry = hub_.registry();
    Contributors contributors(registry);
    Identity first, second;
    first.public_key = signer_.public_key;
    first.shows_nickname = true;
    second.public_key = Signer().public_key;
    for (WorkerId id = 1; id <= 4; ++id) contributors.joined(id);

    contributors.count(view_of(1, 10, 0), true);  // of no contributor yet
    contributors.identified(1, first);
    contributors.identified(2, first);
    contributors.identified(3, second);
    contributors.count(view_of(1, 15, 10), true);
    contributors.count(view_of(2, 7, 0), true);
    // False: the hub does not check answers, so no work is verified.
    contributors.count(view_of(3, 5, 5), false);
    contributors.count(view_of(4, 3, 0), true);
    contributors.left(view_of(2, 9, 9), true);
    contributors.left(view_of(2, 9, 9), true);
    contributors.count(view_of(2, 9, 9), true);

    registry.flush();
    const std::int64_t now_s = std::time(nullptr);
    const Contributions found = registry.contributions(first.public_key, now_s);
    EXPECT_EQ(found.today, (LentWork{10 + 5 + 9 + 5 + 3, 10 + 9}));
    ASSERT_TRUE(found.mine);
    EXPECT_EQ(LentWork(*found.mine), (LentWork{5 + 9, 10 + 9}));
    EXPECT_EQ(found.mine->nickname, "worker 2");
    EXPECT_EQ(LentWork(*registry.contributions(second.public_key, now_s).mine), (LentWork{5, 0}));

    contributors.forget(first.public_key);
    contributors.count(view_of(1, 20, 20), true);
    registry.flush();
    EXPECT_EQ(registry.contributions(first.public_key, now_s).mine->pairs, 14u);
}

}  // namespace
}  // namespace moex::net
