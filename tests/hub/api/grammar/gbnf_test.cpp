// Tests of grammars in GBNF: admitted texts, refused grammars, and masks compared with
// fill_mask_plain().
#include "tests/hub/api/grammar/grammar_fixture.h"

#include "hub/api/grammar/gbnf.h"

namespace moex::test {
namespace {

Result<std::shared_ptr<const Grammar>> grammar_of(std::string_view source,
                                                  const Vocabulary& vocabulary) {
    std::vector<GrammarNode> nodes;
    const auto find_token = [&](std::string_view words) -> std::optional<TokenId> {
        for (const TokenId id : vocabulary.special())
            if (vocabulary.bytes(id) == words) return id;
        return std::nullopt;
    };
    MOEX_ASSIGN(root, add_gbnf(nodes, source, find_token, vocabulary.size()));
    return Grammar::build(std::move(nodes), root);
}

bool admits(const std::shared_ptr<const Grammar>& grammar, std::string_view words) {
    GrammarState state(grammar);
    return state.take(words) && state.may_end();
}

struct GbnfCase {
    const char* source;
    std::vector<const char*> good, bad;
};

TEST(GbnfTest, GrammarsAdmitWhatTheySay) {
    const Vocabulary vocabulary = small_vocabulary();
    const GbnfCase cases[] = {
        {"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "yesno", "maybe"}},
        {"# a list\nroot ::= item (\",\" item)*\nitem ::= [a-c]+ # letters\n",
         {"a", "abc,b", "c,c,c"},
         {"", "a,", "d"}},
        {"root ::= \"(\" root? \")\"", {"()", "((()))"}, {"(", "())"}},
        {"root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
         {"1", "1+22", "(1+(2))+3"},
         {"1+", "()", "(1"}},
        {"root ::= [^a\\]\\x62-d]{2,3} \"\\u00e9\"?",
         {"xy", "xyz\xc3\xa9", "\xf0\x9f\x98\x80!"},
         {"x", "xa", "xyzz", "]x"}},
        {"root ::= .{2} \"\\n\" (\n  \"a\" |\n  \"b\"\n)", {"xy\na", "\xc3\xa9-\nb"}, {"x\na"}},
        {"root ::= \"a\"\n  | \"b\"", {"a", "b"}, {"ab"}},
        {"root ::= \"x\" + [yz] ? (\"q\"\n *) {2,3}", {"xx", "xyqq", "xzqqqqq"}, {"", "xyy"}},
    };
    for (const GbnfCase& one : cases) {
        const auto grammar = grammar_of(one.source, vocabulary);
        ASSERT_TRUE(grammar.ok()) << one.source << grammar.error().message;
        for (const char* words : one.good) EXPECT_TRUE(admits(*grammar, words)) << words;
        for (const char* words : one.bad) EXPECT_FALSE(admits(*grammar, words)) << words;
    }
}

// If the compiler copied the part under each + twice, 40 nested + would make 2^40 copies.
TEST(GbnfTest, PlusesInsideEachOtherDoNotMultiply) {
    const Vocabulary vocabulary = small_vocabulary();
    std::string groups = "\"a\"";
    for (int i = 0; i < 40; ++i) groups = "(" + groups + " \"b\"?)+";
    const GbnfCase cases[] = {
        {"root ::= \"zz\"?++++++++++++++++++++++++++++++++++++++++", {"", "zz", "zzzz"}, {"z"}},
        {groups.insert(0, "root ::= ").c_str(), {"a", "ab", "aabbab"}, {"", "ba", "c"}},
    };
    for (const GbnfCase& one : cases) {
        std::vector<GrammarNode> nodes;
        const auto root = add_gbnf(nodes, one.source, {}, vocabulary.size());
        ASSERT_TRUE(root.ok()) << one.source;
        EXPECT_LE(nodes.size(), 2u) << "a rule, and one automaton for all of it";
        const auto grammar = Grammar::build(std::move(nodes), *root);
        ASSERT_TRUE(grammar.ok()) << one.source;
        for (const char* words : one.good) EXPECT_TRUE(admits(*grammar, words)) << words;
        for (const char* words : one.bad) EXPECT_FALSE(admits(*grammar, words)) << words;
    }
}

TEST(GbnfTest, InvalidGrammarIsRefusedWithItsLine) {
    const Vocabulary vocabulary = small_vocabulary();
    const std::pair<const char*, const char*> cases[] = {
        {"", "no rule root"},
        {"root ::= x", "no rule x"},
        {"root ::= \"a", "an open \""},
        {"root ::= \"a\"\nroot ::= \"b\"", "two rules root"},
        {"root ::= \"a\"\nx ::= [b", "line 2 has an open ["},
        {"root ::= (\"a\"", "an open ("},
        {"root ::= \"a\"{3,2}", "braces"},
        {"root ::= root \"a\" | \"b\"", "refers to itself"},
        {"root ::= (root? \"\")* \"b\"", "may be empty"},
        {"root ::= \"a\" root", "nothing satisfies it"},
        {"root ::= <[9999]>", "an unknown token number"},
        {"root ::= <none>", "an unknown token"},
        {"root \"a\"", "no ::="},
    };
    for (const auto& [source, wanted] : cases) {
        const auto grammar = grammar_of(source, vocabulary);
        ASSERT_FALSE(grammar.ok()) << source;
        EXPECT_NE(grammar.error().message.find(wanted), std::string::npos)
            << source << ": " << grammar.error().message;
    }
}

TEST(GbnfTest, EveryMaskIsWhatTryingEachTokenGives) {
    const Vocabulary vocabulary = small_vocabulary();
    MaskCache cache;
    std::mt19937_64 random(5);
    for (const char* source :
         {"root ::= [a-z ]* \"!\"", "root ::= \"{\" (root (\", \" root)*)? \"}\"",
          "root ::= ([0-9]+ | \"ab\" | \"abc\")+ \"\\\"\"", "root ::= \"[\" [^\\n]{0,6} \"]\" | .",
          "root ::= [a-z]{2} <call> (\"x\" root | \"\")"}) {
        const auto grammar = grammar_of(source, vocabulary);
        ASSERT_TRUE(grammar.ok()) << source << grammar.error().message;
        const std::uint32_t least = (*grammar)->least((*grammar)->root());
        for (const std::uint32_t tokens : {least, least + 2, 3 * least, 30u})
            for (int round = 0; round < 5; ++round)
                draw_answer(*grammar, vocabulary, cache, tokens, random, true);
        ASSERT_FALSE(HasFailure()) << source;
    }
}

}  // namespace
}  // namespace moex::test
