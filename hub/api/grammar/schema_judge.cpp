#include "hub/api/grammar/schema_judge.h"

#include "hub/api/grammar/schema_document.h"
#include "hub/api/grammar/schema_formats.h"
#include "hub/api/grammar/schema_values.h"

namespace moex {
namespace {

constexpr std::size_t patterns_max = 64;
constexpr std::uint64_t pattern_bytes_max = 8u << 20;

}  // namespace

SchemaJudge::SchemaJudge(OrderedJson schema) : schema_(std::move(schema)) {
    compile_patterns(schema_);
}

void SchemaJudge::compile_patterns(const OrderedJson& at) {
    const auto compile = [&](const std::string& pattern) {
        if (patterns_.contains(pattern) || patterns_.size() >= patterns_max ||
            bytes_ > pattern_bytes_max)
            return;
        auto texts = automaton_of_pattern(pattern);
        if (texts.ok()) bytes_ += (*texts)->num_bytes();
        patterns_[pattern] = texts.ok() ? *texts : nullptr;
    };
    if (at.is_object()) {
        if (const auto one = at.find("pattern"); one != at.end() && one->is_string())
            compile(one->get<std::string>());
        if (const auto all = at.find("patternProperties"); all != at.end() && all->is_object())
            for (const auto& [pattern, inside] : all->items()) compile(pattern);
    }
    if (at.is_structured())
        for (const OrderedJson& inside : at) compile_patterns(inside);
}

Result<bool> SchemaJudge::admits(const OrderedJson& value) const {
    const SchemaDocument document(schema_, "schema", {}, nullptr);
    const ResolveReference resolve = [&](const OrderedJson& reference) -> const OrderedJson& {
        return document.resolve(reference, "schema");
    };
    const FindPattern find = [&](const std::string& pattern) -> Result<SharedAutomaton> {
        const auto found = patterns_.find(pattern);
        if (found == patterns_.end() || !found->second)
            return Error{ErrorCode::unsupported, "a pattern is not supported"};
        return found->second;
    };
    try {
        return schema_admits(schema_, value, resolve, find);
    } catch (const SchemaFailure& failure) {
        return failure.error;
    }
}

}  // namespace moex
