#include "hub/model/package/safetensors.h"

#include <gtest/gtest.h>

#include "tests/support/checkpoint_builder.h"

namespace moex {
namespace {

using test::raw_safetensors;

Status read(const std::string& file) {
    MOEX_ASSIGN(header, safetensors_header_of(as_byte_view(file), "f"));
    MOEX_ASSIGN(entries, parse_safetensors_header(header, file.size(), "f"));
    return {};
}

TEST(SafetensorsTest, EntriesPointAtTheirBytes) {
    const std::string header =
        R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[1],)"
        R"("data_offsets":[4,8]},"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}})";
    const std::string file = raw_safetensors(header, "12345678");
    const auto entries = parse_safetensors_header(*safetensors_header_of(as_byte_view(file), "f"),
                                                  file.size(), "f");
    ASSERT_TRUE(entries.ok()) << entries.error().message;
    ASSERT_EQ(entries->size(), 2u);

    EXPECT_EQ((*entries)[0].name, "a");
    EXPECT_EQ(file.substr((*entries)[0].offset_bytes, (*entries)[0].size_bytes), "1234");
    EXPECT_EQ((*entries)[0].shape, (std::vector<std::uint64_t>{2, 1}));
    EXPECT_EQ(file.substr((*entries)[1].offset_bytes, (*entries)[1].size_bytes), "5678");
}

TEST(SafetensorsTest, OurHeaderReadsBackAligned) {
    std::vector<SafetensorsEntry> tensors{{.name = "x", .dtype = TensorDtype::f32, .shape = {2, 4}},
                                          {.name = "y", .dtype = TensorDtype::bf16, .shape = {8}}};
    const std::string file = make_safetensors_header(tensors) + std::string(48, 'z');
    EXPECT_EQ(tensors[0].offset_bytes % 8, 0u);
    const auto entries = parse_safetensors_header(*safetensors_header_of(as_byte_view(file), "f"),
                                                  file.size(), "f");
    ASSERT_TRUE(entries.ok()) << entries.error().message;

    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ((*entries)[i].offset_bytes, tensors[i].offset_bytes);
        EXPECT_EQ((*entries)[i].size_bytes, tensors[i].size_bytes);
    }
}

struct Hostile {
    std::string what, file, message;
};

TEST(SafetensorsTest, HostileFilesAreRefusedWithASentence) {
    const auto one = [](const std::string& entry, std::size_t data_bytes = 4) {
        return raw_safetensors("{\"t\":" + entry + "}", std::string(data_bytes, 'x'));
    };

    std::string huge(16, '\xff');
    std::string deep = "{\"t\":" + std::string(100000, '[') + std::string(100000, ']') + "}";
    const Hostile table[] = {
        {"empty", "", "too short"},
        {"seven bytes", "1234567", "too short"},
        {"huge header", huge, "18446744073709551615"},
        {"header past the end", std::string("\x40\0\0\0\0\0\0\0{}", 10), "truncated"},
        {"not JSON", raw_safetensors("hello", ""), "not JSON"},
        {"cut JSON", raw_safetensors("{\"t\":", ""), "not JSON"},
        {"invalid UTF-8", raw_safetensors("{\"\xff\":1}", ""), "not JSON"},
        {"a list", raw_safetensors("[]", ""), "wanted an object"},
        {"deep nesting", raw_safetensors(deep, ""), "nested"},
        {"name twice",
         raw_safetensors(
             R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"t":{"dtype":"F32",)"
             R"("shape":[1],"data_offsets":[0,4]}})",
             "1234"),
         "twice"},
        {"entry is a number", one("3"), "wanted {dtype"},
        {"no shape", one(R"({"dtype":"F32","data_offsets":[0,4]})"), "wanted {dtype"},
        {"unknown dtype", one(R"({"dtype":"F12","shape":[1],"data_offsets":[0,4]})"), "F12"},
        {"dtype is a number", one(R"({"dtype":4,"shape":[1],"data_offsets":[0,4]})"), "dtype 4"},
        {"negative size", one(R"({"dtype":"F32","shape":[-1],"data_offsets":[0,4]})"), "-1"},
        {"fractional size", one(R"({"dtype":"F32","shape":[1.5],"data_offsets":[0,4]})"), "1.5"},
        {"product overflows",
         one(R"({"dtype":"F32","shape":[4294967296,4294967296,16],"data_offsets":[0,4]})"),
         "larger than any file"},
        {"rank 9", one(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]})"),
         "at most 8"},
        {"one offset", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0]})"), "[begin, end]"},
        {"backwards", one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,0]})"), "[begin, end]"},
        {"past the end", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})"), "truncated"},
        {"far past the end",
         one(R"({"dtype":"F32","shape":[1],"data_offsets":[18446744073709551608,)"
             R"(18446744073709551612]})"),
         "truncated"},
        {"wrong length", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})"), "wanted 8"},
        {"overlap",
         raw_safetensors(
             R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32",)"
             R"("shape":[1],"data_offsets":[2,6]}})",
             "123456"),
         "overlap"},
        {"same bytes twice",
         raw_safetensors(
             R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32",)"
             R"("shape":[1],"data_offsets":[0,4]}})",
             "1234"),
         "overlap"},
        {"hole",
         raw_safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12345678"),
         "belong to none"},
        {"bytes left over", one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", 9),
         "belong to none"},
    };

    for (const Hostile& hostile : table) {
        const Status status = read(hostile.file);
        ASSERT_FALSE(status.ok()) << hostile.what;
        EXPECT_NE(status.error().message.find(hostile.message), std::string::npos)
            << hostile.what << ": " << status.error().message;
        EXPECT_EQ(status.error().message.find("f: "), 0u)
            << hostile.what << ": " << status.error().message;
        EXPECT_LT(status.error().message.size(), 500u) << hostile.what;
    }
}

TEST(SafetensorsTest, ElementsOfEveryTypeBecomeFloats) {
    const std::byte f16[] = {std::byte{0}, std::byte{0x3c}, std::byte{0}, std::byte{0xc0}},
                    bf16[] = {std::byte{0x80}, std::byte{0x3f}, std::byte{0}, std::byte{0xc0}};
    float out[2];
    elements_to_float(TensorDtype::f16, f16, out);
    EXPECT_EQ(out[0], 1.0f);
    EXPECT_EQ(out[1], -2.0f);
    elements_to_float(TensorDtype::bf16, bf16, out);

    EXPECT_EQ(out[0], 1.0f);
    EXPECT_EQ(out[1], -2.0f);
}

TEST(SafetensorsTest, FirstNonFiniteValueIsFound) {
    std::vector<float> values(1000, 1.0f);
    EXPECT_FALSE(find_non_finite(values));
    values[700] = -INFINITY;
    values[800] = NAN;
    EXPECT_EQ(find_non_finite(values), 700u);
}

}  // namespace
}  // namespace moex
