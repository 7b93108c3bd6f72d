// Tests the encryption of pages on disk and the places of its key.
#include "hub/state/page_cipher.h"

#include <fstream>
#include <set>

#include <sys/stat.h>

#include <gtest/gtest.h>

#include "protocol/text.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

PageKey key_of(int value) {
    PageKey key{};
    key.fill(static_cast<std::byte>(value));
    return key;
}

const std::string secret = "a text that nobody else may read";

TEST(PageCipherTest, SealedPageOpensInItsPlaceOnly) {
    PageCipher writer(key_of(1)), reader(key_of(1)), stranger(key_of(2));
    const Bytes sealed = writer.seal(as_byte_view(secret), "a/b");
    const auto opened = reader.open(sealed, "a/b");
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EXPECT_EQ(as_text_view(*opened), secret);
    EXPECT_FALSE(reader.open(sealed, "a/c").ok());
    EXPECT_FALSE(stranger.open(sealed, "a/b").ok());
    EXPECT_EQ(as_text_view(sealed).find(secret.substr(0, 8)), std::string_view::npos);
}

TEST(PageCipherTest, EveryChangedBitAndEveryLengthIsRefused) {
    PageCipher cipher(key_of(1));
    const Bytes sealed = cipher.seal(as_byte_view(secret), "a/b");
    for (std::size_t bit = 0; bit < sealed.size() * 8; ++bit) {
        Bytes changed = sealed;
        changed[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        EXPECT_FALSE(cipher.open(changed, "a/b").ok()) << bit;
    }
    for (std::size_t size = 0; size < sealed.size(); ++size)
        EXPECT_FALSE(cipher.open(ByteView(sealed).first(size), "a/b").ok()) << size;
}

// The salt and the counter (bytes 8 to 31) are never the same twice, also over restarts.
TEST(PageCipherTest, NoSaltAndCounterRepeats) {
    std::set<Bytes> seen;
    for (int start = 0; start < 20; ++start) {
        PageCipher cipher(key_of(1));
        for (int page = 0; page < 20; ++page) {
            const Bytes sealed = cipher.seal(as_byte_view(secret), "a/b");
            EXPECT_TRUE(seen.emplace(sealed.begin() + 8, sealed.begin() + 32).second);
        }
    }
}

TEST(PageCipherTest, NamesFollowFromKeyPurposeAndBytes) {
    const PageCipher one(key_of(1)), again(key_of(1)), other(key_of(2));
    const PageName name = one.name("page", as_byte_view("text"));
    EXPECT_EQ(name, again.name("page", as_byte_view("text")));
    EXPECT_NE(name, other.name("page", as_byte_view("text")));
    EXPECT_NE(name, one.name("client", as_byte_view("text")));
    EXPECT_NE(name, one.name("page", as_byte_view("texts")));
    EXPECT_NE(one.name("a", as_byte_view("bc")), one.name("ab", as_byte_view("c")));
}

TEST(PageKeyTest, KeyIsMadeOncePrivateAndReadAgain) {
    const test::TemporaryFolder folder("page-key");
    const PageKeyPlaces places{.made = folder.path() / "kv-key"};
    const auto made = load_page_key(places), again = load_page_key(places);
    ASSERT_TRUE(made.ok()) << made.error().message;
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(*made, *again);
    EXPECT_NE(*made, PageKey{});
    struct stat info {};
    ASSERT_EQ(::stat(places.made.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(PageKeyTest, ChosenFileGoesBeforeCredentialAndMadeKey) {
    const test::TemporaryFolder folder("page-key-order");
    const auto write = [&](const char* name, char digit) {
        std::ofstream(folder.path() / name) << std::string(64, digit) << '\n';
        return folder.path() / name;
    };
    const PageKeyPlaces all{.file = write("file", '1'),
                            .credential = write("credential", '2'),
                            .made = write("made", '3')};
    EXPECT_EQ(load_page_key(all).value(), key_of(0x11));
    EXPECT_EQ(load_page_key({.credential = all.credential, .made = all.made}).value(),
              key_of(0x22));
    EXPECT_EQ(load_page_key({.credential = folder.path() / "none", .made = all.made}).value(),
              key_of(0x33));
    EXPECT_FALSE(load_page_key({.file = folder.path() / "none", .made = all.made}).ok());
}

TEST(PageKeyTest, FileThatIsNoKeyIsRefusedByName) {
    const test::TemporaryFolder folder("page-key-bad");
    const auto path = folder.path() / "short";
    std::ofstream(path) << "1234\n";
    const auto key = load_page_key({.file = path});
    ASSERT_FALSE(key.ok());
    EXPECT_NE(key.error().message.find(path.string()), std::string::npos);
    EXPECT_NE(key.error().message.find("has 4 characters"), std::string::npos);
    EXPECT_NE(key.error().message.find("64 hexadecimal digits"), std::string::npos);
}

}  // namespace
}  // namespace moex
