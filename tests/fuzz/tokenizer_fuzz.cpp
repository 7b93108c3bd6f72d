// Fuzzes the tokenizer. For any bytes, encoding must end. Decoding must return the repaired,
// normalised text, also with the stream decoder, for vocabularies of bytes and of pieces. Bytes
// that look like JSON are also read as a tokenizer.json file.
#include <cstdint>
#include <string>

#include "hub/model/tokenizer/charsmap.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "hub/model/tokenizer/tokenizer_files.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/check.h"
#include "protocol/text.h"

namespace {

using namespace moex;

// Returns the text of a tokenizer file with all 256 bytes, a few merges, a special token and a
// marker, in the form of a Qwen model's file.
std::string file_text() {
    std::string vocab, letters = "etaoin";
    int next = 256, id = 0;
    for (int byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                               (byte >= 0xAE && byte <= 0xFF);
        const auto c = static_cast<char32_t>(printable ? byte : next++);
        std::string key;
        if (c == '"' || c == '\\') key = "\\";
        utf8_append(key, c);
        vocab += text(id ? "," : "", '"', key, "\":", id);
        ++id;
    }

    std::string merges;
    for (const char a : letters)
        for (const char b : letters) {
            vocab += text(",\"", a, b, "\":", id++);
            merges += text(merges.empty() ? "" : ",", '"', a, ' ', b, '"');
        }

    return text(R"({"added_tokens":[{"id":400,"content":"<|end|>","special":true},{"id":401,)"
                R"("content":"<t>","special":false,"normalized":false},)",
                R"({"id":402,"content":"strip","lstrip":true,"rstrip":true,"special":false,)"
                R"("normalized":false}],"normalizer":{"type":"NFC"},)",
                R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split",)"
                R"("behavior":"Isolated","pattern":{"Regex":)",
                R"("(?i:'s|'t|'re)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|)"
                R"( ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},)",
                R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},)"
                R"("model":{"type":"BPE","vocab":{)",
                vocab, R"(},"merges":[)", merges, "]}}");
}

// Returns a tokenizer file in the form of Llama 2's: a few letters, and the bytes of all others.
std::string piece_file_text() {
    constexpr std::string_view digits = "0123456789ABCDEF";
    std::string vocab = R"("<s>":0,"\u2581":1,"a":2,"\u2581a":3,"<":4,"s":5,">":6,"<s":7)";
    for (std::size_t byte = 0; byte < 256; ++byte)
        vocab += text(",\"<0x", digits[byte / 16], digits[byte % 16], ">\":", 8 + byte);
    return text(R"({"added_tokens":[{"id":0,"content":"<s>","special":true}],"normalizer":)"
                R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},)"
                R"({"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},)"
                R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":)"
                R"({"String":"\u2581"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},)"
                R"({"type":"Strip","content":" ","start":1,"stop":0}]},)"
                R"("model":{"type":"BPE","byte_fallback":true,"merges":["\u2581 a","< s","<s >"],)"
                R"("vocab":{)",
                vocab, "}}}");
}

std::string streamed_text(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
    StreamDecoder stream(tokenizer, false);
    std::string streamed;
    for (const TokenId id : ids) {
        const std::string shown = stream.push(id);
        MOEX_CHECK(utf8_is_valid(shown), "the stream shows broken text");
        streamed += shown;
    }
    return streamed + stream.finish();
}

// Pieces: a text without control tokens and without "▁", which means a space, comes back.
void check_pieces(const std::string& input) {
    static const auto tokenizer = std::move(Tokenizer::load(piece_file_text(), "")).value();
    const std::vector<TokenId> ids = tokenizer->encode(input, SpecialTokens::as_text);
    for (const TokenId id : ids) MOEX_CHECK(id != 0, "a control token in plain text");
    const std::string repaired = utf8_repair(input);
    const std::string decoded = tokenizer->decode(ids, false);
    if (repaired.find("\u2581") == std::string::npos)
        MOEX_CHECK(decoded == repaired, "decode(encode(x)) is not x");
    MOEX_CHECK(streamed_text(*tokenizer, ids) == decoded, "streamed and whole text differ");

    // Decode ids in an order that no encoding gives, since a model may draw any ids.
    std::vector<TokenId> drawn;
    for (const char c : input) drawn.push_back(static_cast<std::uint8_t>(c));
    MOEX_CHECK(streamed_text(*tokenizer, drawn) == tokenizer->decode(drawn, false),
               "streamed and whole text differ");
    const TextRange range[] = {{input.size() / 3, input.size() / 2}};
    (void)tokenizer->encode(input, range);
}

// Files of SentencePiece and tiktoken, and a map of characters, may have any bytes. Each one that
// is accepted can be used.
void check_files(const std::string& input) {
    constexpr const char* kimi = R"({"tokenizer_class": "TikTokenTokenizer"})";
    for (const auto& made :
         {tokenizer_json_of_sentencepiece(input, ""), tokenizer_json_of_tiktoken(input, kimi)}) {
        if (!made.ok()) continue;
        if (const auto loaded = Tokenizer::load(*made, ""); loaded.ok())
            (void)(*loaded)->encode("some text \xC3\xA9", SpecialTokens::parse);
    }
    if (const auto map = CharsMap::from_bytes(input); map.ok())
        MOEX_CHECK(utf8_is_valid((*map)->apply("some text \xC3\xA9")), "a map gives broken text");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const auto tokenizer = std::move(Tokenizer::load(file_text(), "")).value();
    const std::string input(reinterpret_cast<const char*>(data), size);
    if (size > 0 && input[0] == '{') {
        if (const auto loaded = Tokenizer::load(input, input); loaded.ok())
            (void)(*loaded)->encode("some text <s> \xC3\xA9", SpecialTokens::parse);
    }
    const std::vector<TokenId> plain = tokenizer->encode(input, SpecialTokens::as_text);
    // The added token "strip" removes white space on both of its sides.
    const bool strips = input.find("strip") != std::string::npos;
    if (!strips)
        MOEX_CHECK(tokenizer->decode(plain, false) == utf8_nfc(utf8_repair(input)),
                   "decode(encode(x)) is not x");
    for (const TokenId id : plain)
        MOEX_CHECK(id != 400 && id != 401, "a control token in plain text");

    const std::vector<TokenId> ids = tokenizer->encode(input, SpecialTokens::parse);
    MOEX_CHECK(streamed_text(*tokenizer, ids) == tokenizer->decode(ids, false),
               "streamed and whole text differ");
    const TextRange range[] = {{size / 3, size / 2}};
    (void)tokenizer->encode(input, range);
    check_pieces(input);
    check_files(input);
    return 0;
}
