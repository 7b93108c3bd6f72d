// Answers requests about tokenizers and templates for scripts that compare this program with other
// implementations. A request and its answer are JSON.
//   {"op": "tokenizer", "json": TEXT, "config": TEXT or ""}       → {"ok": true, "vocab_size": N}
//   {"op": "encode", "hex": BYTES, "as_text": bool}               → {"ids": [...], "prompt": [...]
//   with what the post-processor adds}
//   {"op": "decode", "ids": [...], "skip_special": bool}          → {"text": "...", "streamed":
//   "..."}
//   {"op": "find", "files": {NAME: HEX, ...}, "config": TEXT}     → {"name": NAME or null, "made":
//   TEXT of tokenizer.json}
//   {"op": "template", "source": "..."}                           → {"ok": true}
//   {"op": "render", "context": {...}}                            → {"text": "..."}
// A failed request is answered with {"error": "..."}.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "hub/model/chat_template.h"
#include "hub/model/tokenizer/tokenizer.h"
#include "hub/model/tokenizer/tokenizer_files.h"

namespace moex {

class TextAnswers {
  public:
    using Question = nlohmann::ordered_json;

    Question answer(const Question& request) {
        const std::string op = request.value("op", "");
        if (op == "tokenizer") {
            auto loaded = Tokenizer::load(request.value("json", ""), request.value("config", ""));
            if (!loaded.ok()) return {{"error", loaded.error().message}};
            tokenizer_ = *loaded;
            return {{"ok", true}, {"vocab_size", tokenizer_->vocab_size()}};
        }
        if (op == "encode") {
            const auto special = request.value("as_text", false) ? SpecialTokens::as_text
                                                                 : SpecialTokens::parse;
            const std::string bytes = bytes_of_hex(request.value("hex", ""));
            return {{"ids", tokenizer_->encode(bytes, special)},
                    {"prompt", tokenizer_->encode_prompt(bytes)}};
        }
        if (op == "decode") {
            const auto ids = request["ids"].get<std::vector<TokenId>>();
            const bool skip = request.value("skip_special", false);
            StreamDecoder stream(*tokenizer_, skip);
            std::string streamed;
            for (const TokenId id : ids) streamed += stream.push(id);
            streamed += stream.finish();
            return {{"text", tokenizer_->decode(ids, skip)}, {"streamed", streamed}};
        }
        if (op == "find") return found(request);
        if (op == "template") {
            auto parsed = ChatTemplate::parse(request.value("source", ""));
            if (!parsed.ok()) return {{"error", parsed.error().message}};
            chat_template_ = *parsed;
            return {{"ok", true}};
        }
        if (op == "render") {
            auto rendered = chat_template_->render(request["context"]);
            if (!rendered.ok()) return {{"error", rendered.error().message}};
            return {{"text", *rendered}};
        }
        return {{"error", "unknown op"}};
    }

  private:
    static Question found(const Question& request) {
        CheckpointTexts checkpoint;
        for (const auto& [name, hex] : request["files"].items()) checkpoint.names.push_back(name);
        checkpoint.read = [&](const std::string& name) -> Result<std::string> {
            return bytes_of_hex(request["files"][name]);
        };
        auto file = find_tokenizer_file(checkpoint, request.value("config", ""));
        if (!file.ok()) return {{"error", file.error().message}};
        if (!*file) return {{"name", nullptr}};
        return {{"name", (*file)->name}, {"made", (*file)->tokenizer_json}};
    }

    static std::string bytes_of_hex(const std::string& hex) {
        std::string bytes;
        for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
            bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
        return bytes;
    }

    std::shared_ptr<const Tokenizer> tokenizer_;
    std::shared_ptr<const ChatTemplate> chat_template_;
};

}  // namespace moex
