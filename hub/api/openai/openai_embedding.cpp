// Embeddings in OpenAI's dialect.
// Source: OpenAI API reference, embeddings.
#include <bit>

#include "hub/api/jobs/embedding_job.h"

namespace moex {
namespace {

constexpr std::size_t inputs_max = 2048;  // as OpenAI's

Checked<EmbeddingParams> read(const OrderedJson& body, std::size_t vocab_size) {
    BodyFields fields(body);
    EmbeddingParams params;
    fields.string("model", params.model);
    params.inputs = read_text_inputs(fields, "input",
                                     {.count_max = inputs_max, .vocab_size = vocab_size});

    std::string format = "float";
    fields.string("encoding_format", format);
    if (format != "float" && format != "base64")
        fields.wrong("encoding_format", "\"float\" or \"base64\"", OrderedJson(format));
    params.base64 = format == "base64";

    if (fields.find("dimensions"))
        fields.unsupported("dimensions", "a row is as wide as the model's hidden state.");
    if (fields.problem()) return *fields.problem();
    return params;
}

// Encodes a row as little-endian f32 in base64 (RFC 4648 §4).
std::string base64_of(const std::vector<float>& row) {
    std::string bytes;
    for (const float value : row) {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift);
    }

    constexpr std::string_view digits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
        std::uint32_t group = 0;
        for (std::size_t i = 0; i < 3; ++i)
            group = group << 8 |
                    (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
        for (std::size_t i = 0; i < 4; ++i)
            out += at + i > bytes.size() ? '=' : digits[group >> (18 - 6 * i) & 63];
    }
    return out;
}

OrderedJson write(const Embeddings& embeddings) {
    OrderedJson data = OrderedJson::array();
    for (std::size_t i = 0; i < embeddings.rows.size(); ++i) {
        OrderedJson row = embeddings.base64 ? OrderedJson(base64_of(embeddings.rows[i]))
                                            : OrderedJson(embeddings.rows[i]);
        data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", std::move(row)}});
    }
    return {{"object", "list"},
            {"data", std::move(data)},
            {"model", embeddings.model},
            {"usage",
             {{"prompt_tokens", embeddings.prompt_tokens},
              {"total_tokens", embeddings.prompt_tokens}}}};
}

}  // namespace

const EmbeddingEndpoint openai_embedding_endpoint{.read = read, .write = write};

}  // namespace moex
