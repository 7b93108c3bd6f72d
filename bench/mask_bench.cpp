// Measures the time of one token's grammar mask, with 16 schemas in one batch.
//   mask_bench [--vocab N] [--tokens N] [--header] [--each]
// The vocabulary has the demo's 8,189 tokens, and then joined pairs of these tokens, up to N
// tokens. The share of tokens that cross the borders of JSON's elements is then as large as in a
// trained vocabulary. Answers are drawn at random from the masks. The header line names the CSV
// columns. The first row begins with an empty cache, the second row with the cache that the first
// one filled. Goal with 151,936 tokens: median 0.2 ms, p99 from an empty cache 2 ms. cpu: this
// thread's CPU time, which other processes do not lengthen.
// --each: prints a line for each schema, beginning with '#': the number of masks that took longer
// than 2 ms, and the token of the slowest mask.
// example: mask_bench --header
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "hub/api/grammar/json_schema.h"
#include "hub/api/grammar/mask.h"

namespace moex {
namespace {

constexpr const char* schemas[] = {
    R"({"type": "object"})",
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": false})",
    R"({"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 3})",
    R"({"type": "array", "items": {"type": "number"}, "minItems": 20})",
    R"({"type": "array", "items": {"enum": ["north", "south", "east", "west"]}, "minItems": 20})",
    R"({"type": "string", "pattern": "^([a-z]+ )*[a-z]+$", "minLength": 100, "maxLength": 400})",
    R"({"type": "array", "items": {"type": "string", "format": "date-time"}, "minItems": 5})",
    R"({"type": "array", "items": {"type": "string", "format": "uuid"}, "minItems": 5})",
    R"({"type": "object", "additionalProperties": {"type": "integer"}})",
    R"({"type": "array", "items": {"type": "integer", "minimum": -50, "maximum": 999},
        "minItems": 20})",
    R"({"$defs": {"n": {"type": "object", "properties": {"v": {"type": "string"}, "next":
        {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["v", "next"]}},
        "$ref": "#/$defs/n"})",
    R"({"anyOf": [{"type": "array", "items": {"type": "boolean"}, "minItems": 9}, {"type": "object",
        "properties": {"a": {"type": "string"}}, "required": ["a"]}]})",
    R"({"type": "string"})",
    R"({"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}}}, "required": ["id", "tags"],
        "additionalProperties": false}, "minItems": 4})",
    R"({"type": "array", "items": {"type": "string", "format": "email"}, "minItems": 4})",
    R"({"type": "string", "minLength": 200})",
};

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

Vocabulary make_vocabulary(std::size_t size) {
    const std::string model = "static/models/demo/";
    const auto tokenizer = Tokenizer::load(read_file(model + "tokenizer.json"),
                                           read_file(model + "tokenizer_config.json"))
                               .value();
    std::vector<std::string> tokens;
    std::set<std::string> known;
    for (TokenId id = 0; id + 3 < tokenizer->vocab_size(); ++id) {
        tokens.push_back(tokenizer->token_bytes(id));
        known.insert(tokens.back());
    }
    const std::size_t own = tokens.size();
    std::mt19937_64 random(7);
    while (tokens.size() + 1 < size) {
        std::string pair = tokens[random() % own] + tokens[random() % own];
        if (known.insert(pair).second) tokens.push_back(std::move(pair));
    }
    tokens.emplace_back("<end>");
    const auto end = static_cast<TokenId>(tokens.size() - 1);
    return Vocabulary(std::move(tokens), {}, {end});
}

double thread_ms() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

void measure(const char* begin, const Vocabulary& vocabulary, MaskCache& cache,
             std::uint32_t tokens, bool each) {
    std::vector<double> times;
    struct Slow {
        int over = 0;
        double ms = 0;
        std::uint32_t token = 0;
    };
    std::vector<Slow> slow(std::size(schemas));
    TokenBits bits(vocabulary.num_words());
    std::mt19937_64 random(11);
    std::vector<GrammarState> states;
    for (const char* schema : schemas)
        states.emplace_back(grammar_of_schema(OrderedJson::parse(schema), "schema").value());

    // Computes the masks of all answers of the batch one after the other, as a step of the hub
    // does.
    for (std::uint32_t said = 0; said < tokens; ++said)
        for (std::size_t i = 0; i < states.size(); ++i) {
            GrammarState& state = states[i];
            const double started = thread_ms();
            fill_mask(state, tokens - said, vocabulary, cache, bits);
            times.push_back(thread_ms() - started);
            slow[i].over += times.back() > 2;
            if (times.back() > slow[i].ms)
                slow[i] = {.over = slow[i].over, .ms = times.back(), .token = said};

            std::vector<TokenId> allowed;
            for (TokenId id = 0; id < vocabulary.size(); ++id)
                if (has_bit(bits, id) && !vocabulary.is_end(id)) allowed.push_back(id);
            if (!allowed.empty()) take_token(state, vocabulary, allowed[random() % allowed.size()]);
        }

    for (std::size_t i = 0; each && i < slow.size(); ++i)
        std::printf("# %s: %d over 2 ms, slowest %.3f at token %u: %.60s\n", begin, slow[i].over,
                    slow[i].ms, slow[i].token, schemas[i]);
    std::sort(times.begin(), times.end());
    const auto at = [&](double share) {
        return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
    };
    std::printf("%s,%zu,%zu,%zu,%.3f,%.3f,%.3f,%.3f,%llu,%.1f\n", begin, vocabulary.size(),
                std::size(schemas), times.size(), at(0.5), at(0.9), at(0.99), times.back(),
                static_cast<unsigned long long>(cache.num_walks()),
                static_cast<double>(cache.num_bytes()) / 1e6);
}

int run(int argc, char** argv) {
    std::size_t vocab_size = 151'936;
    std::uint32_t tokens = 250;
    bool each = false;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--header") == 0)
            std::printf(
                "cache,vocab_size,schemas,masks,ms_median,ms_p90,ms_p99,ms_max,walks,"
                "cache_mb\n");
        else if (std::strcmp(argv[i], "--each") == 0)
            each = true;
        else if (std::strcmp(argv[i], "--vocab") == 0 && i + 1 < argc)
            vocab_size = std::strtoull(argv[++i], nullptr, 10);
        else if (std::strcmp(argv[i], "--tokens") == 0 && i + 1 < argc)
            tokens = static_cast<std::uint32_t>(std::strtoul(argv[++i], nullptr, 10));
        else
            return 2;
    }
    const Vocabulary vocabulary = make_vocabulary(vocab_size);
    MaskCache cache(256u << 20);
    measure("empty", vocabulary, cache, tokens, each);
    measure("filled", vocabulary, cache, tokens, each);
    return 0;
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) { return moex::run(argc, argv); }
