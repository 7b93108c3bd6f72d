// Tests what a hub makes of a publisher's signature: no altered manifest and no altered signature
// is accepted, and the file of known keys is told by name.
#include "hub/commands/serve/known_publishers.h"

#include <fstream>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "hub/base/log.h"
#include "hub/base/signing_key.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

class KnownPublishersTest : public testing::Test {
  protected:
    KnownPublishersTest() : folder_("publishers") {
        set_log(LogLevel::error);
        fs::copy(test::tiny_package()->directory(), model(), fs::copy_options::recursive);
        fs::create_directories(state());
    }
    fs::path model() const { return folder_.path() / "model"; }
    fs::path state() const { return folder_.path() / "state"; }
    static std::string read(const fs::path& path) {
        std::ifstream in(path, std::ios::binary);
        std::ostringstream content;
        content << in.rdbuf();
        return content.str();
    }
    static void write(const fs::path& path, const std::string& content) {
        std::ofstream(path, std::ios::binary) << content;
    }
    void sign(const char* key_name) const {
        const SigningKey key = SigningKey::open(folder_.path() / key_name).value();
        const auto package = ModelPackage::open(model()).value();
        const Sha256 manifest = parse_sha256(package->manifest_sha256()).value();
        const auto signature = key.sign_manifest(manifest, package->file(manifest)->size()).value();
        write(model() / signature_file_name, signed_manifest_to_json(signature));
    }
    Status check() const {
        MOEX_ASSIGN(package, ModelPackage::open(model()));
        return check_publisher(*package, state());
    }

    test::TemporaryFolder folder_;
};

TEST_F(KnownPublishersTest, PackageThatNobodySignedIsAcceptedUntilAKeyIsKnown) {
    EXPECT_TRUE(check().ok());
    EXPECT_FALSE(fs::exists(state() / "known-publishers"));
    sign("ada");
    EXPECT_TRUE(check().ok());
    fs::remove(model() / signature_file_name);
    const Status refused = check();
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("sent no signature"), std::string::npos);
    EXPECT_NE(refused.error().message.find("known-publishers"), std::string::npos);
}

TEST_F(KnownPublishersTest, ThousandMutationsOfManifestAndSignatureAreRefused) {
    sign("ada");
    ASSERT_TRUE(check().ok());
    constexpr unsigned seed = 36;
    std::mt19937 random(seed);
    for (const char* name : {"manifest.json", signature_file_name}) {
        const std::string whole = read(model() / name);
        for (int i = 0; i < 500; ++i) {
            std::string mutated = whole;
            const std::size_t at = random() % whole.size();
            mutated[at] = static_cast<char>(mutated[at] ^ (1 + random() % 127));
            write(model() / name, mutated);
            EXPECT_FALSE(check().ok()) << name << ", seed " << seed << ", mutation " << i;
        }
        write(model() / name, whole);
        ASSERT_TRUE(check().ok());
    }
}

TEST_F(KnownPublishersTest, KnownKeysThatCannotBeReadAreNamed) {
    sign("ada");
    write(state() / "known-publishers", "tiny 12\n");
    const Status damaged = check();
    ASSERT_FALSE(damaged.ok());
    EXPECT_NE(damaged.error().message.find("known-publishers, line 1"), std::string::npos);
    EXPECT_EQ(read(state() / "known-publishers"), "tiny 12\n");

    // A folder that cannot be written: the key would not be known at the next start.
    fs::remove(state() / "known-publishers");
    fs::create_directories(state() / "known-publishers.part" / "x");
    const Status unwritten = check();
    ASSERT_FALSE(unwritten.ok());
    EXPECT_EQ(unwritten.error().code, ErrorCode::io_error);
    EXPECT_NE(unwritten.error().message.find("known-publishers"), std::string::npos);
}

}  // namespace
}  // namespace moex
