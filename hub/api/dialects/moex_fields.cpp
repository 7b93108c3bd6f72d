#include "hub/api/dialects/moex_fields.h"

#include <chrono>

#include "hub/api/body_fields.h"

namespace moex {
namespace {

// Reads moex.experts, the expert mode of a request, or takes the operator's default: "exact", or a
// lossy mode that the hub offers.
void read_experts(BodyFields& fields, const OrderedJson& asked, const ApiOptions& options,
                  ExpertMode& experts) {
    constexpr const char* field = "moex.experts";
    constexpr const char* wanted =
        "\"exact\", \"speculative\" or another mode that /v1/models lists";
    if (!asked.is_null() && !asked.is_string()) return fields.wrong(field, wanted, asked);
    const std::string name = asked.is_null() ? options.experts : asked.get<std::string>();
    if (name == "exact") return;

    if (!options.find_mode) return fields.unsupported(field, options.no_modes);
    auto way = options.find_mode(name);
    if (way.ok())
        experts = *std::move(way);
    else if (way.error().code == ErrorCode::invalid_argument)
        fields.wrong(field, wanted, asked);
    else
        fields.unsupported(field, way.error().message + ".");
}

// Reads moex.late_ms, the longest time to wait for an expert call, and moex.late_max, the number of
// expert calls of the answer that may be cut short at that time.
LateWish read_late_wish(const OrderedJson& ours, const ApiOptions& options, bool speculative,
                        BodyFields& fields) {
    constexpr std::uint32_t late_ms_max = 60'000;
    const OrderedJson &ms = member(ours, "late_ms"), &most = member(ours, "late_max");
    const auto whole = [&](const OrderedJson& value, std::uint64_t up_to) {
        return value.is_number_unsigned() && value.get<std::uint64_t>() >= 1 &&
               value.get<std::uint64_t>() <= up_to;
    };
    if (ms.is_null()) {
        if (!most.is_null())
            fields.refuse("'moex.late_max' needs 'moex.late_ms'.", "invalid_value",
                          "moex.late_max");
        return {};
    }
    if (!whole(ms, late_ms_max))
        fields.wrong("moex.late_ms", text("a whole number from 1 to ", late_ms_max), ms);
    else if (options.late_calls_max == 0)
        fields.unsupported("moex.late_ms",
                           "this hub waits for every expert's answer (serve --late-calls-max).");
    else if (speculative)
        fields.refuse("'moex.late_ms' needs 'moex.experts' to be \"exact\".", "invalid_value",
                      "moex.late_ms");
    else if (!most.is_null() && !whole(most, options.late_calls_max))
        fields.wrong(
            "moex.late_max",
            text("a whole number from 1 to ", options.late_calls_max, " (serve --late-calls-max)"),
            most);
    if (fields.problem()) return {};
    return {.wait = std::chrono::milliseconds(ms.get<std::uint32_t>()),
            .calls_max = most.is_null() ? options.late_calls_max : most.get<std::uint32_t>()};
}

// Reads moex.speculative, the number of tokens to draft in each step.
std::optional<std::uint32_t> read_draft_tokens(const OrderedJson& asked, const ApiOptions& options,
                                               bool is_lossy, BodyFields& fields) {
    constexpr const char* field = "moex.speculative";
    if (asked.is_null() || asked == "auto") return std::nullopt;
    if (asked == "off") return 0;
    if (!asked.is_number_unsigned() || asked.get<std::uint64_t>() < 1 ||
        asked.get<std::uint64_t>() > draft_tokens_max)
        fields.wrong(
            field, text("\"off\", \"auto\" or a whole number from 1 to ", draft_tokens_max), asked);
    else if (!options.drafts)
        fields.unsupported(field, "this hub drafts no tokens (serve --speculative off).");
    else if (is_lossy)
        fields.refuse(
            "'moex.speculative' drafts no tokens of a lossy answer ('moex.experts', "
            "'moex.late_ms').",
            "invalid_value", field);
    if (fields.problem()) return std::nullopt;
    return asked.get<std::uint32_t>();
}

}  // namespace

Checked<MoexFields> read_moex_fields(const OrderedJson& body, const ApiOptions& options,
                                     bool is_stream, Dialect dialect) {
    BodyFields fields(body);
    MoexFields moex_fields;
    static const OrderedJson nothing;
    const OrderedJson* const found = fields.find("moex");
    const OrderedJson& ours = found ? *found : nothing;
    if (found && !ours.is_object()) fields.wrong("moex", "an object", ours);

    read_experts(fields, member(ours, "experts"), options, moex_fields.experts);

    moex_fields.late = read_late_wish(ours, options, moex_fields.experts.name != "exact", fields);

    moex_fields.draft_tokens = read_draft_tokens(
        member(ours, "speculative"), options,
        moex_fields.experts.name != "exact" || moex_fields.late.calls_max > 0, fields);

    const auto read_flag = [&](const char* name, bool& out) {
        const OrderedJson& given = member(ours, name);
        if (given.is_boolean())
            out = given.get<bool>();
        else if (!given.is_null())
            fields.wrong(text("moex.", name), "true or false", given);
    };
    read_flag("store", moex_fields.stores_pages);
    read_flag("open_objects", moex_fields.opens_objects);
    if (const OrderedJson& spans = member(ours, "spans"); spans == "off" || spans == "auto")
        moex_fields.stays_here = spans == "off";
    else if (!spans.is_null())
        fields.wrong("moex.spans", "\"off\" or \"auto\"", spans);
    if (const OrderedJson& pages = member(ours, "pages"); pages.is_string())
        moex_fields.pages = pages.get<std::string>();
    else if (!pages.is_null())
        fields.wrong("moex.pages", "a name that /v1/pages returned", pages);
    bool& wanted = moex_fields.resumable;
    read_flag("resumable", wanted);
    if (wanted && !is_stream)
        fields.refuse("'moex.resumable' needs 'stream' to be true.", "invalid_value",
                      "moex.resumable");
    if (wanted && streams_lines(dialect))
        fields.unsupported("moex.resumable", "lines of JSON have no numbers, which events have.");
    if (fields.problem()) return *fields.problem();
    return moex_fields;
}

}  // namespace moex
