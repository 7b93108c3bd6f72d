// Answers questions about text for scripts that compare with
// other implementations: one JSON request per line of stdin, one
// JSON answer per line of stdout.
//   {"op": "tokenizer", "json": FILE, "config": FILE or ""}       → {"ok": true, "vocab_size": N}
//   {"op": "encode", "hex": BYTES, "as_text": bool}               → {"ids": [...], "prompt": [...]
//   with what the post-processor adds}
//   {"op": "decode", "ids": [...], "skip_special": bool}          → {"text": "...", "streamed":
//   "..."}
//   {"op": "template", "source": "..."}                           → {"ok": true}
//   {"op": "render", "context": {...}}                            → {"text": "..."}
// Anything that fails is {"error": "..."}.
#include <fstream>
#include <iostream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "hub/model/chat_template.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace {

using Json = nlohmann::ordered_json;

std::string read_file(const std::string& path) {
    if (path.empty()) return {};
    std::ifstream in(path, std::ios::binary);
    std::ostringstream content;
    content << in.rdbuf();
    return content.str();
}

std::string bytes_of_hex(const std::string& hex) {
    std::string bytes;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
}

struct Probe {
    std::shared_ptr<const moex::Tokenizer> tokenizer;
    std::shared_ptr<const moex::ChatTemplate> chat_template;

    Json answer(const Json& request) {
        const std::string op = request.at("op");
        if (op == "tokenizer") {
            auto loaded = moex::Tokenizer::load(read_file(request.at("json")),
                                                read_file(request.value("config", "")));
            if (!loaded) return {{"error", loaded.error().message}};
            tokenizer = *loaded;
            return {{"ok", true}, {"vocab_size", tokenizer->vocab_size()}};
        }
        if (op == "encode") {
            const auto special = request.value("as_text", false) ? moex::SpecialTokens::as_text
                                                                 : moex::SpecialTokens::parse;
            const std::string bytes = bytes_of_hex(request.at("hex"));
            return {{"ids", tokenizer->encode(bytes, special)},
                    {"prompt", tokenizer->encode_prompt(bytes)}};
        }
        if (op == "decode") {
            const auto ids = request.at("ids").get<std::vector<moex::TokenId>>();
            const bool skip = request.value("skip_special", false);
            moex::StreamDecoder stream(*tokenizer, skip);
            std::string streamed;
            for (const moex::TokenId id : ids) streamed += stream.push(id);
            streamed += stream.finish();
            return {{"text", tokenizer->decode(ids, skip)}, {"streamed", streamed}};
        }
        if (op == "template") {
            auto parsed = moex::ChatTemplate::parse(request.at("source").get<std::string>());
            if (!parsed) return {{"error", parsed.error().message}};
            chat_template = *parsed;
            return {{"ok", true}};
        }
        if (op == "render") {
            auto rendered = chat_template->render(request.at("context"));
            if (!rendered) return {{"error", rendered.error().message}};
            return {{"text", *rendered}};
        }
        return {{"error", "unknown op"}};
    }
};

}  // namespace

int main() {
    Probe probe;
    for (std::string line; std::getline(std::cin, line);) {
        if (line.empty()) continue;
        std::cout << probe.answer(Json::parse(line)).dump() << std::endl;
    }
    return 0;
}
