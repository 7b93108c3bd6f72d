// Tokenizers of GGUF files that have the arrays of SentencePiece. The arrays are made of the model
// files in tests/golden/tokenizers, as llama.cpp's converter makes them; the expected ids are those
// of SentencePiece itself.
#include "hub/model/pack/readers/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include "hub/model/tokenizer/sentencepiece_model.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

using test::TempFolder;
using Ids = std::vector<TokenId>;
const std::string golden = repository().string() + "/tests/golden/tokenizers/";

// Writes the header of a GGUF file without tensors.
class GgufWriter {
  public:
    template <class Number>
    static std::string bytes_of(Number value) {
        return {reinterpret_cast<const char*>(&value), sizeof value};
    }
    static std::string string_of(const std::string& content) {
        return bytes_of(std::uint64_t{content.size()}) + content;
    }
    void add(const std::string& name, std::uint32_t type, const std::string& value) {
        values_ += string_of(name) + bytes_of(type) + value;
        ++num_values_;
    }
    void add_text(const std::string& name, const std::string& value) {
        add(name, 8, string_of(value));
    }
    void add_flag(const std::string& name, bool value) { add(name, 7, bytes_of(value)); }
    template <class T, class Write>
    void add_array(const std::string& name, std::uint32_t type, const std::vector<T>& values,
                   const Write& write) {
        std::string array = bytes_of(type) + bytes_of(std::uint64_t{values.size()});
        for (const T& value : values) array += write(value);
        add(name, 9, array);
    }
    std::string file() const {
        return "GGUF" + bytes_of(std::uint32_t{3}) + bytes_of(std::uint64_t{0}) +
               bytes_of(num_values_) + values_;
    }

  private:
    std::string values_;
    std::uint64_t num_values_ = 0;
};

class GgufPiecesTest : public testing::Test {
  protected:
    // Returns the metadata of a GGUF file with the vocabulary of a model of SentencePiece.
    static GgufWriter arrays_of(const SentencePieceModel& model) {
        GgufWriter gguf;
        gguf.add_text("tokenizer.ggml.model", model.is_bpe() ? "llama" : "t5");
        gguf.add_array("tokenizer.ggml.tokens", 8, model.pieces, [](const SentencePiece& piece) {
            return GgufWriter::string_of(piece.text);
        });
        gguf.add_array("tokenizer.ggml.scores", 6, model.pieces, [](const SentencePiece& piece) {
            return GgufWriter::bytes_of(piece.score);
        });
        gguf.add_array("tokenizer.ggml.token_type", 5, model.pieces,
                       [](const SentencePiece& piece) {
                           return GgufWriter::bytes_of(static_cast<std::int32_t>(piece.type));
                       });
        gguf.add_flag("tokenizer.ggml.add_space_prefix", model.dummy_prefix);
        gguf.add_flag("tokenizer.ggml.remove_extra_whitespaces", model.removes_extra_spaces);
        if (!model.charsmap.empty())
            gguf.add_array("tokenizer.ggml.precompiled_charsmap", 0,
                           std::vector<char>(model.charsmap.begin(), model.charsmap.end()),
                           [](char byte) { return std::string(1, byte); });
        return gguf;
    }
    static SentencePieceModel model_of(const std::string& name) {
        auto model = read_sentencepiece_file(test::read_file(golden + name));
        EXPECT_TRUE(model.ok()) << model.error().message;
        return model.ok() ? *model : SentencePieceModel();
    }
    ModelSource source_of(const GgufWriter& gguf) {
        test::write_file(folder_ / "model.gguf", gguf.file());
        std::uint64_t bytes_left = 1u << 24;
        const auto file = GgufFile::open(folder_ / "model.gguf", bytes_left);
        ModelSource source;
        EXPECT_TRUE(file.ok()) << file.error().message;
        if (file.ok()) add_gguf_tokenizer(**file, source);
        return source;
    }
    static std::shared_ptr<const Tokenizer> tokenizer_of(ModelSource source) {
        EXPECT_TRUE(source.warnings.empty()) << source.warnings.front();
        const auto tokenizer = Tokenizer::load(source.texts["tokenizer.json"],
                                               source.texts["tokenizer_config.json"]);
        EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
        return tokenizer.ok() ? *tokenizer : nullptr;
    }

    TempFolder folder_{"gguf_tokenizer"};
};

TEST_F(GgufPiecesTest, IdsAreThoseOfSentencePiece) {
    std::size_t compared = 0;
    for (const auto& file : nlohmann::json::parse(test::read_file(golden + "golden.json"))) {
        const std::string name = file["file"];
        if (name == "tiktoken.model") continue;
        SCOPED_TRACE(name);
        const auto tokenizer = tokenizer_of(source_of(arrays_of(model_of(name))));
        ASSERT_TRUE(tokenizer);
        for (const auto& one : file["cases"]) {
            const Ids ids = tokenizer->encode(one["text"].get<std::string>(), SpecialTokens::parse);
            EXPECT_EQ(ids, one["ids"].get<Ids>()) << one["text"];
            EXPECT_EQ(tokenizer->decode(ids, false), one["decoded"].get<std::string>());
            ++compared;
        }
    }
    EXPECT_GT(compared, 80u);
}

TEST_F(GgufPiecesTest, PromptBeginsAsTheFileSays) {
    const SentencePieceModel model = model_of("bpe.model");
    EXPECT_EQ(tokenizer_of(source_of(arrays_of(model)))->encode_prompt("the"), (Ids{1, 263}));

    GgufWriter plain = arrays_of(model);
    plain.add_flag("tokenizer.ggml.add_bos_token", false);
    plain.add_flag("tokenizer.ggml.add_eos_token", true);
    EXPECT_EQ(tokenizer_of(source_of(plain))->encode_prompt("the"), (Ids{263, 2}));
}

TEST_F(GgufPiecesTest, DamagedArraysLeaveThePackageWithoutTokenizer) {
    const auto warning_of = [&](const SentencePieceModel& model) {
        const ModelSource source = source_of(arrays_of(model));
        EXPECT_FALSE(source.texts.contains("tokenizer.json"));
        return source.warnings.empty() ? "" : source.warnings.front();
    };
    SentencePieceModel model = model_of("bpe.model");
    model.pieces[5].text = "\xff";
    EXPECT_NE(warning_of(model).find("has a piece 5"), std::string::npos);
    model = model_of("bpe.model");
    model.pieces[300].text = model.pieces[301].text;
    EXPECT_NE(warning_of(model).find("twice"), std::string::npos);
    model = model_of("bpe.model");
    model.pieces[7].type = static_cast<PieceType>(9);
    EXPECT_NE(warning_of(model).find("token 7"), std::string::npos);
    model.pieces.clear();
    EXPECT_NE(warning_of(model).find("without a score"), std::string::npos);
}

}  // namespace
}  // namespace moex
