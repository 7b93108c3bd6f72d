// Tests of names, addresses and listings that another machine or a person wrote. Downloads are
// tested over sockets, in tests/api/pull.test.mjs.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "hub/fetch/pull_state.h"
#include "hub/fetch/repository.h"

namespace moex {
namespace {

TEST(FetchTest, AddressInClearTextIsRefusedBeyondThisMachine) {
    for (const char* good : {"https://example.org", "http://127.0.0.1:8000", "http://[::1]:80/x",
                             "http://localhost:1", "https://example.org:8443/base/"})
        EXPECT_TRUE(parse_web_address(good).ok()) << good;
    for (const char* bad : {"http://example.org", "http://127.0.0.1.example.org", "http://0.0.0.0",
                            "http://localhost.example.org", "ftp://127.0.0.1", "file:///etc/passwd",
                            "https://a:b@example.org", "example.org/x y", "", "https://"})
        EXPECT_FALSE(parse_web_address(bad).ok()) << bad;
}

TEST(FetchTest, OriginsDifferByHostPortAndScheme) {
    const auto origin = [](const char* url) { return parse_web_address(url)->origin; };
    EXPECT_EQ(origin("https://Example.org/a"), origin("https://example.org:443/b?c"));
    EXPECT_NE(origin("https://example.org"), origin("https://cdn.example.org"));
    EXPECT_NE(origin("https://example.org"), origin("https://example.org:8443"));
    EXPECT_NE(origin("http://localhost:443"), origin("https://localhost:443"));
}

TEST(FetchTest, RedirectToPlainHttpIsRefused) {
    const WebAddress from = *parse_web_address("https://example.org/a/b");
    EXPECT_EQ(follow_location(from, "../c")->url, "https://example.org/c");
    EXPECT_EQ(follow_location(from, "//other.org/d")->url, "https://other.org/d");
    EXPECT_FALSE(follow_location(from, "http://127.0.0.1/x").ok());
    EXPECT_FALSE(follow_location(from, "http://other.org/x").ok());
    EXPECT_FALSE(follow_location(from, "javascript:alert(1)").ok());
}

TEST(FetchTest, RepositoryNameHasAnOwnerANameAndARevision) {
    const auto name = parse_repository_name("Qwen/Qwen3-30B-A3B@refs/pr/1");
    ASSERT_TRUE(name.ok()) << name.error().message;
    EXPECT_EQ(name->name, "Qwen/Qwen3-30B-A3B");
    EXPECT_EQ(name->revision, "refs/pr/1");
    EXPECT_EQ(parse_repository_name("gpt2")->revision, "main");
    for (const char* bad : {"", "/", "a/", "/b", "a/b/c", "../b", "a/..", "a/b@", "a/b@..", "a b/c",
                            "-a/b", "a/b@x y", "a/b?c", "a/b@x/"})
        EXPECT_FALSE(parse_repository_name(bad).ok()) << bad;
}

TEST(FetchTest, PathOutsideTheFolderIsRefused) {
    for (const char* good : {"config.json", "1_Pooling/config.json", "a b.gguf", "x..y", "ümlaut"})
        EXPECT_TRUE(check_repository_path(good).ok()) << good;
    for (const char* bad :
         {"", "/etc/passwd", "..", "../x", "a/../b", "a/..", "./a", "a//b", "a/", "a\\b", "a\nb"})
        EXPECT_FALSE(check_repository_path(bad).ok()) << bad;
    EXPECT_FALSE(check_repository_path(std::string(201, 'x')).ok());
}

TEST(FetchTest, NextPageIsTheLinkNamedNext) {
    EXPECT_EQ(next_page_of("<https://h/a?cursor=b>; rel=\"next\""), "https://h/a?cursor=b");
    EXPECT_EQ(next_page_of("<https://h/1>; rel=\"prev\", <https://h/2>; rel=\"next\""),
              "https://h/2");
    for (const char* none : {"", "<https://h/1>; rel=\"prev\"", "<", ">", "<>", "rel=\"next\""})
        EXPECT_EQ(next_page_of(none), "") << none;
}

TEST(FetchTest, SplitGgufBringsAllItsParts) {
    std::vector<RepositoryFile> files;
    for (const char* path : {"a/x-00001-of-00003.gguf", "a/x-00002-of-00003.gguf",
                             "a/x-00003-of-00003.gguf", "y.gguf"})
        files.push_back({.path = path, .size_bytes = 1});
    const auto parts = choose_files(files, "", "a/x-00002-of-00003.gguf", "r");
    ASSERT_TRUE(parts.ok()) << parts.error().message;
    EXPECT_EQ(parts->size(), 3u);
    EXPECT_EQ(choose_files(files, "", "y.gguf", "r")->size(), 1u);

    files.erase(files.begin());
    EXPECT_FALSE(choose_files(files, "", "a/x-00002-of-00003.gguf", "r").ok());
}

TEST(FetchTest, TokenThatBreaksAHeaderIsRefused) {
    EXPECT_EQ(*parse_token("hf_abc"), "hf_abc");
    EXPECT_EQ(*parse_token(""), "");
    for (const char* bad : {"x y", "x\r\nHost: z", "x\n", "\x80"}) {
        const auto token = parse_token(bad);
        ASSERT_FALSE(token.ok());
        EXPECT_EQ(token.error().message.find(bad), std::string::npos);
    }
}

TEST(FetchTest, DamagedStateOfAPartIsNotResumed) {
    const auto folder = std::filesystem::temp_directory_path() /
                        text("moex-fetch-", static_cast<int>(getpid()));
    std::filesystem::create_directories(folder / ".pull");
    const RepositoryFile file{.path = "w", .size_bytes = 100, .sha256 = std::string(64, 'a')};
    {
        PartFile part(folder, file, 40);
        ASSERT_EQ(part.ranges.size(), 3u);
        ASSERT_TRUE(part.open().ok());
        part.ranges[0].done = 40;
        part.ranges[1].done = 7;
        const nlohmann::json saved = part.to_json();

        PartFile again(folder, file, 64);
        again.resume(saved);
        EXPECT_EQ(again.done_bytes(), 47u);

        for (const char* damage :
             {R"({"ranges": 3})", R"({"ranges": [[0, 100, 101]]})", R"({"ranges": [[0, 90, 1]]})",
              R"({"ranges": [[10, 100, 1]]})", R"({"ranges": [[0, "x", 1]]})", R"({"size": 99})",
              R"({"hash": "b"})", R"({"hash": 5})", R"({"ranges": [[0, 0, 0], [0, 100, 1]]})"}) {
            nlohmann::json damaged = saved;
            damaged.update(nlohmann::json::parse(damage));
            PartFile fresh(folder, file, 64);
            fresh.resume(damaged);
            EXPECT_EQ(fresh.done_bytes(), 0u) << damage;
        }
    }
    std::filesystem::remove_all(folder);
}

TEST(FetchTest, HugeFileHasABoundedNumberOfRanges) {
    const PartFile part("/nowhere", {.path = "w", .size_bytes = 1ull << 42}, 1);
    EXPECT_LE(part.ranges.size(), 4096u);
    EXPECT_EQ(part.ranges.back().end, 1ull << 42);
}

}  // namespace
}  // namespace moex
