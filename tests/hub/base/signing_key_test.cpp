#include "hub/base/signing_key.h"

#include <sys/stat.h>

#include <fstream>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "protocol/text.h"

namespace moex {
namespace {

class SigningKeyTest : public testing::Test {
  protected:
    void SetUp() override {
        folder_ = std::filesystem::temp_directory_path() /
                  text("moex-key-", ::getpid(), '-',
                       testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::filesystem::path file() const { return folder_ / "signing-key"; }
    SigningKey open() const { return SigningKey::open(file()).value(); }
    static SignedManifest sign(const SigningKey& key) {
        return key.sign_manifest(manifest_, 1234).value();
    }
    static Result<SignerKey> judge(KnownKeys& known, const SignedManifest& signed_manifest) {
        return judge_signer("hub", &signed_manifest, known, signature_fits);
    }
    static std::string read(const std::filesystem::path& path) {
        std::ifstream in(path, std::ios::binary);
        std::ostringstream content;
        content << in.rdbuf();
        return content.str();
    }

    static constexpr Sha256 manifest_{std::byte{1}, std::byte{2}, std::byte{3}};
    std::filesystem::path folder_;
};

TEST_F(SigningKeyTest, KeyIsMadeOnceForItsOwner) {
    const PublicKey made = open().public_key();
    EXPECT_EQ(open().public_key(), made);
    struct stat info {};
    ASSERT_EQ(::stat(file().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777u, 0600u);
    EXPECT_EQ(fingerprint_of(made).substr(0, 4), to_hex(made).substr(0, 4));
    EXPECT_EQ(fingerprint_of(made).size(), 39u);
}

TEST_F(SigningKeyTest, FileWithoutKeyIsRefusedByName) {
    std::ofstream(file()) << "no key\n";
    const auto opened = SigningKey::open(file());
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.error().message.find("signing-key: holds no Ed25519 key"), std::string::npos);
    EXPECT_EQ(read(file()), "no key\n");
}

// The plain procedure of RFC 8032 is OpenSSL's own; this test only guards the text that is signed.
TEST_F(SigningKeyTest, SignatureCoversHashAndSize) {
    const SignedManifest whole = sign(open());
    EXPECT_TRUE(check_signature(whole, signature_fits).ok());
    SignedManifest other = whole;
    other.size_bytes += 1;
    EXPECT_FALSE(check_signature(other, signature_fits).ok());
    other = whole;
    other.sha256[31] ^= std::byte{1};
    EXPECT_FALSE(check_signature(other, signature_fits).ok());
    EXPECT_TRUE(signature_fits(whole.key, whole.signature,
                               text("MoEx manifest 1\n", to_hex(manifest_), "\n1234")));
}

TEST_F(SigningKeyTest, KeyIsPinnedAtFirstUse) {
    KnownKeys known;
    const SigningKey key = open();
    EXPECT_EQ(judge(known, sign(key)).value(), SignerKey::first);
    EXPECT_EQ(judge(known, sign(key)).value(), SignerKey::known);

    const SigningKey other = SigningKey::open(folder_ / "other").value();
    const auto judged = judge(known, sign(other));
    ASSERT_FALSE(judged.ok());
    EXPECT_EQ(judged.error().code, ErrorCode::unauthorized);
    for (const PublicKey& one : {key.public_key(), other.public_key()})
        EXPECT_NE(judged.error().message.find(fingerprint_of(one)), std::string::npos)
            << judged.error().message;
    EXPECT_EQ(known.find("hub"), key.public_key());
}

TEST_F(SigningKeyTest, MissingSignatureOfKnownSignerIsRefused) {
    KnownKeys known;
    known.pin("hub", open().public_key());
    EXPECT_FALSE(judge_signer("hub", nullptr, known, signature_fits).ok());
}

TEST_F(SigningKeyTest, ChangesOfTheKeyAreFollowed) {
    SigningKey key = open();
    KnownKeys known;
    ASSERT_TRUE(judge(known, sign(key)).ok());
    const PublicKey first = key.public_key();
    ASSERT_TRUE(key.renew().ok());
    ASSERT_TRUE(key.renew().ok());
    EXPECT_NE(key.public_key(), first);
    EXPECT_EQ(open().public_key(), key.public_key());
    ASSERT_EQ(open().changes().size(), 2u);
    EXPECT_EQ(judge(known, sign(open())).value(), SignerKey::changed);
    EXPECT_EQ(known.find("hub"), key.public_key());
}

// renew() writes the change before the key. Between the two writes the process may end.
TEST_F(SigningKeyTest, ChangeThatTookNoEffectIsPassedOver) {
    const SigningKey before = open();
    KnownKeys known;
    known.pin("hub", before.public_key());
    const std::string pem = read(file());
    ASSERT_TRUE(open().renew().ok());
    std::ofstream(file()) << pem;
    EXPECT_EQ(judge(known, sign(open())).value(), SignerKey::known);

    SigningKey again = open();
    ASSERT_TRUE(again.renew().ok());
    EXPECT_EQ(judge(known, sign(again)).value(), SignerKey::changed);
}

TEST_F(SigningKeyTest, ChangeByAStrangerIsRefused) {
    const PublicKey first = open().public_key();
    SigningKey stranger = SigningKey::open(folder_ / "stranger").value();
    KnownKeys known;
    known.pin("hub", first);
    SignedManifest forged = sign(stranger);
    const auto signature = stranger.sign(key_change_text(first, stranger.public_key())).value();
    forged.changes = {{first, stranger.public_key(), signature}};
    EXPECT_FALSE(judge(known, forged).ok());
    // A circle of changes ends.
    forged.changes = {{first, first, open().sign(key_change_text(first, first)).value()}};
    EXPECT_FALSE(judge(known, forged).ok());
}

TEST_F(SigningKeyTest, ThousandMutationsOfASignatureAreRefused) {
    SigningKey key = open();
    const PublicKey first = key.public_key();
    ASSERT_TRUE(key.renew().ok());
    ASSERT_TRUE(key.renew().ok());
    const std::string json = signed_manifest_to_json(sign(key));
    const auto accepted = [&](const std::string& mutated) {
        KnownKeys known;
        known.pin("hub", first);
        const auto parsed = parse_signed_manifest(mutated, "a signature");
        return parsed.ok() && judge(known, *parsed).ok();
    };
    ASSERT_TRUE(accepted(json));

    constexpr unsigned seed = 36;
    std::mt19937 random(seed);
    for (int i = 0; i < 1000; ++i) {
        std::string mutated = json;
        const std::size_t at = random() % json.size();
        if (i % 4 == 3)
            mutated.erase(at, 1 + random() % 40);
        else
            mutated[at] = static_cast<char>(mutated[at] ^ (1 + random() % 127));
        EXPECT_FALSE(accepted(mutated)) << "seed " << seed << ", mutation " << i << ": " << mutated;
    }
}

TEST_F(SigningKeyTest, FileOfKnownKeysIsReadBack) {
    KnownKeys known;
    known.pin("hub:8080", open().public_key());
    known.pin("moex-demo", manifest_);
    const auto again = KnownKeys::parse("# by hand\r\n\n" + known.to_text(), "keys");
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(again->find("hub:8080"), open().public_key());
    EXPECT_EQ(again->find("moex-demo"), manifest_);
    EXPECT_EQ(again->find("hub"), std::nullopt);

    const auto wrong = KnownKeys::parse("# keys\nhub:8080 1234\n", "keys");
    ASSERT_FALSE(wrong.ok());
    EXPECT_NE(wrong.error().message.find("keys, line 2: wanted a name"), std::string::npos);
}

TEST_F(SigningKeyTest, BlobsOfAManifestAreRead) {
    const std::string a = to_hex(manifest_), b = to_hex(Sha256{});
    const auto blobs = blobs_of_manifest(
        text(R"({"experts":[null,[")", a, R"(",")", b, R"("],[")", a, R"("]]})"));
    ASSERT_TRUE(blobs.ok());
    EXPECT_EQ(*blobs, (std::set<Sha256>{manifest_, Sha256{}}));
    EXPECT_FALSE(blobs_of_manifest(R"({"experts":[["12"]]})").ok());
    EXPECT_FALSE(blobs_of_manifest(R"({"experts":[7]})").ok());
    EXPECT_FALSE(blobs_of_manifest(R"({})").ok());
    EXPECT_FALSE(blobs_of_manifest("no").ok());
}

}  // namespace
}  // namespace moex
