// Prints answers for another validator: tests/hub/api/grammar/ajv_schemas.test.mjs reads them.
//   schema_instances [--schemas N] [--first SEED] [--step N] [--vocab N] [--model DIR]
//   schema_instances --read FILE
// It prints a line of JSON for each schema of the seeded generator, for every --step'th seed from
// --first on, below --schemas:
//   {"seed", "schema", "least": bytes of its shortest answer, "answers": [...], "instances": [...]}
// Answers: the engine's sampler draws from random logits at temperature 1 under the schema's mask,
// with max_tokens of the minimum, twice that, and 400. They are parsed here, too, because
// JSON.parse accepts a name that occurs twice. Instances: 20 valid ones in the stated form, each
// admitted by the mask token by token, in the demo's tokens or, with --vocab, in that many joined
// tokens. --model is the folder of the demo's tokenizer, for a machine without these sources.
// --read: the schemas are those of a file, one {"name", "schema"} a line, read as the API reads
// them. A schema that is refused gives {"name", "error"}, another one {"name", "answers", "ms"};
// `ms` is the time to build the grammar. bench/schema_coverage.mjs counts them. The program exits
// with 1 and a sentence if an answer does not parse or an instance is not admitted.
#include <chrono>
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
#include "hub/api/grammar/schema_values.h"
#include "hub/api/jobs/answer_mask.h"
#include "hub/model/strict_json.h"
#include "tests/hub/api/grammar/schema_generator.h"
#include "tests/support/repository.h"

namespace moex::test {
namespace {

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "schema_instances: %s\n", what.c_str());
    std::exit(1);
}

std::string read_file(const std::string& name) {
    std::ifstream file(name, std::ios::binary);
    if (!file) fail(name + " cannot be read");
    return std::string(std::istreambuf_iterator<char>(file), {});
}

// Makes a vocabulary of the demo's tokens and of token pairs, up to `size`; the last token ends
// an answer.
std::vector<std::string> joined_tokens(const Tokenizer& tokenizer, std::size_t size) {
    std::vector<std::string> tokens;
    std::set<std::string> known;
    for (TokenId id = 0; id + 3 < tokenizer.vocab_size(); ++id) {
        tokens.push_back(tokenizer.token_bytes(id));
        known.insert(tokens.back());
    }
    const std::size_t own = tokens.size();
    std::mt19937_64 random(7);
    while (tokens.size() + 1 < size) {
        std::string pair = tokens[random() % own] + tokens[random() % own];
        if (known.insert(pair).second) tokens.push_back(std::move(pair));
    }
    tokens.emplace_back("<end>");
    return tokens;
}

// Cuts a text into tokens: with the demo's tokenizer, or by always taking the longest token that
// fits.
class Words {
  public:
    Words(const std::string& model, std::size_t vocab_size)
        : tokenizer_(Tokenizer::load(read_file(model + "/tokenizer.json"),
                                     read_file(model + "/tokenizer_config.json"))
                         .value()) {
        if (vocab_size <= tokenizer_->vocab_size()) return;
        tokens_ = joined_tokens(*tokenizer_, vocab_size);
        for (TokenId id = 0; id + 1 < tokens_.size(); ++id) {
            ids_.emplace(tokens_[id], id);
            longest_ = std::max(longest_, tokens_[id].size());
        }
    }
    Vocabulary vocabulary() const {
        if (tokens_.empty()) return Vocabulary(*tokenizer_, tokenizer_->vocab_size(), ends());
        return Vocabulary(tokens_, {}, {static_cast<TokenId>(tokens_.size() - 1)});
    }
    std::vector<TokenId> encode(const std::string& words) const {
        if (tokens_.empty()) return tokenizer_->encode(words, SpecialTokens::as_text);
        std::vector<TokenId> out;
        for (std::size_t at = 0; at < words.size();) {
            std::size_t length = std::min(longest_, words.size() - at);
            while (length > 1 && !ids_.contains(words.substr(at, length))) --length;
            out.push_back(ids_.at(words.substr(at, length)));
            at += length;
        }
        return out;
    }

  private:
    // Returns the tokens that end an answer of the demo model's family.
    std::vector<TokenId> ends() const {
        std::vector<TokenId> found;
        for (const char* name : {"<|im_end|>", "<|endoftext|>"})
            if (const auto id = tokenizer_->token_id(name)) found.push_back(*id);
        if (found.empty()) fail("the tokenizer has no token that ends an answer");
        return found;
    }

    std::shared_ptr<const Tokenizer> tokenizer_;
    std::vector<std::string> tokens_;
    std::map<std::string, TokenId> ids_;
    std::size_t longest_ = 0;
};

// Makes random logits for each token of an answer, without drawing a new random number for each
// logit.
class RandomLogits {
  public:
    RandomLogits(std::size_t vocab_size, std::uint64_t seed)
        : vocab_size_(vocab_size),
          table_(vocab_size + 65'537),
          random_(seed) {
        std::normal_distribution<float> normal(0.0f, 2.0f);
        for (float& value : table_) value = normal(random_);
    }
    std::span<const float> next() {
        return std::span(table_).subspan(random_() % 65'537, vocab_size_);
    }

  private:
    const std::size_t vocab_size_;
    std::vector<float> table_;
    std::mt19937_64 random_;
};

std::string draw(const std::shared_ptr<MaskMaker>& maker,
                 const std::shared_ptr<const Grammar>& grammar, std::uint32_t tokens_max,
                 std::uint64_t seed, RandomLogits& logits) {
    SamplingOptions options;
    options.seed = seed;
    options.mask = std::make_shared<AnswerMask>(maker, GrammarState(grammar));
    Sampler sampler(options, {}, tokens_max);
    std::string answer;
    for (std::uint32_t i = 0; i < tokens_max; ++i) {
        const TokenId id = sampler.choose(logits.next());
        if (maker->vocabulary().is_end(id)) break;
        sampler.accept(id);
        answer += maker->vocabulary().bytes(id);
    }
    return answer;
}

void check_admitted(const std::shared_ptr<const Grammar>& grammar, MaskMaker& maker,
                    const Words& words, const std::string& instance) {
    const Vocabulary& vocabulary = maker.vocabulary();
    const std::vector<TokenId> ids = words.encode(instance);
    GrammarState state(grammar);
    TokenBits bits(vocabulary.num_words());
    std::string said;
    for (const TokenId id : ids) {
        std::fill(bits.begin(), bits.end(), 0);
        fill_mask(state, endless, vocabulary, maker.cache(), bits);
        if (!has_bit(bits, id) || !take_token(state, vocabulary, id))
            fail(text(instance, ": behind '", said, "' token '", std::string(vocabulary.bytes(id)),
                      "' is not allowed"));
        said += vocabulary.bytes(id);
    }
    if (said != instance || !state.may_end()) fail(text(instance, " may not end"));
}

struct Options {
    std::uint64_t num_schemas = 200, first = 0, step = 1, vocab_size = 0;
    std::string model = (repository() / "static/models/demo").string();
    std::string read;  // file of schemas; empty: the generator's
};

Options read_options(int argc, char** argv) {
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 == argc) fail(name + " lacks its value");
        if (name == "--model" || name == "--read") {
            (name == "--read" ? options.read : options.model) = argv[i + 1];
            continue;
        }
        std::uint64_t* const value = name == "--schemas" ? &options.num_schemas
                                     : name == "--first" ? &options.first
                                     : name == "--step"  ? &options.step
                                     : name == "--vocab" ? &options.vocab_size
                                                         : nullptr;
        if (!value) fail(name + " is no option");
        *value = std::strtoull(argv[i + 1], nullptr, 10);
    }
    if (options.step == 0) fail("--step 0 goes nowhere");
    return options;
}

// Draws answers for the schemas of a file.
int run_file(const std::string& name, const std::shared_ptr<MaskMaker>& maker) {
    constexpr std::uint32_t tokens_max = 600, answer_bytes_max = 20'000;
    std::ifstream file(name);
    if (!file) fail(name + " cannot be read");
    std::uint64_t seed = 0;
    for (std::string line; std::getline(file, line); ++seed) {
        const OrderedJson given = OrderedJson::parse(line);
        OrderedJson out{{"name", given["name"]}};
        const auto begin = std::chrono::steady_clock::now();
        const auto grammar = grammar_of_schema(given["schema"], "schema");
        const auto took = std::chrono::steady_clock::now() - begin;
        out["ms"] = std::chrono::duration<double, std::milli>(took).count();
        if (!grammar.ok()) {
            out["error"] = grammar.error().message;
            std::puts(out.dump().c_str());
            continue;
        }
        const std::uint32_t least = (*grammar)->least((*grammar)->root());
        out["answers"] = OrderedJson::array();
        RandomLogits logits(maker->vocabulary().size(), seed);
        for (const std::uint32_t tokens : {least, std::max(2 * least, tokens_max)})
            if (least < answer_bytes_max)
                out["answers"].push_back(draw(maker, *grammar, tokens, seed, logits));
        std::puts(out.dump().c_str());
    }
    return 0;
}

int run(int argc, char** argv) {
    const Options options = read_options(argc, argv);
    const Words words(options.model, options.vocab_size);
    const auto maker = std::make_shared<MaskMaker>(words.vocabulary());
    if (!options.read.empty()) return run_file(options.read, maker);
    for (std::uint64_t seed = options.first; seed < options.num_schemas; seed += options.step) {
        SchemaGenerator generator(seed);
        const OrderedJson schema = generator.document();
        const auto grammar = grammar_of_schema(schema, "schema", {.closes_objects = false});
        if (!grammar.ok()) fail(text("seed ", seed, ": ", grammar.error().message));

        const std::uint32_t least = (*grammar)->least((*grammar)->root());
        OrderedJson line{{"seed", seed}, {"schema", schema}, {"least", least}};
        RandomLogits logits(maker->vocabulary().size(), seed);
        for (const std::uint32_t tokens : {least, 2 * least, std::max(least, 400u)}) {
            std::string answer = draw(maker, *grammar, tokens, seed, logits);
            const auto parsed = parse_strict_json<OrderedJson>(answer, "answer",
                                                               {.depth_max = 512});
            if (!parsed.ok())
                fail(text("seed ", seed, ", ", tokens, " tokens: ", parsed.error().message, ": ",
                          answer));
            line["answers"].push_back(std::move(answer));
        }
        constexpr int instances_each = 20;
        for (int i = 0; i < instances_each; ++i) {
            std::string instance = json_text(generator.instance(schema));
            check_admitted(*grammar, *maker, words, instance);
            line["instances"].push_back(std::move(instance));
        }
        std::puts(line.dump().c_str());
    }
    return 0;
}

}  // namespace
}  // namespace moex::test

int main(int argc, char** argv) { return moex::test::run(argc, argv); }
