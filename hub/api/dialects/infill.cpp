#include "hub/api/dialects/infill.h"

#include "hub/api/body_fields.h"
#include "hub/api/openai/openai_response.h"
#include "hub/api/request_parts.h"

namespace moex {
namespace {

void read_files(BodyFields& fields, MiddleWish& out) {
    const OrderedJson* const list = fields.find("input_extra");
    if (!list) return;
    constexpr std::size_t files_max = 256;
    const std::string wanted = text("at most ", files_max,
                                    " objects {\"text\": ..., \"filename\": ...}");
    if (!list->is_array() || list->size() > files_max)
        return fields.wrong("input_extra", wanted, *list);
    for (const OrderedJson& one : *list) {
        const OrderedJson &words = member(one, "text"), &name = member(one, "filename");
        if (!words.is_string() || !(name.is_string() || name.is_null()))
            return fields.wrong("input_extra", wanted, one);
        out.files.push_back({.name = name.is_null() ? std::string() : name.get<std::string>(),
                             .text = words.get<std::string>()});
    }
}

// Returns a body of /v1/completions with the fields that both APIs have.
OrderedJson completion_body(const OrderedJson& body, const std::string& prefix) {
    OrderedJson out = body;
    out["prompt"] = prefix;
    // Editors send llama.cpp's bounds of time and indentation unasked; the answer is right without.
    for (const char* name : {"suffix", "echo", "logprobs", "max_tokens", "n", "n_predict",
                             "response_fields", "n_indent", "t_max_predict_ms"})
        out.erase(name);
    const OrderedJson& tokens = member(body, "n_predict");
    if (!tokens.is_null() && tokens != -1 && tokens != -2) out["max_tokens"] = tokens;
    return out;
}

Checked<CompletionParams> read_infill(const OrderedJson& body, const ParamLimits& limits) {
    BodyFields fields(body);
    MiddleWish wish{.param = "input_suffix", .may_cut = true};
    std::string prefix;
    fields.string("input_prefix", prefix);
    fields.string("input_suffix", wish.suffix);
    fields.string("prompt", wish.prompt_end);
    for (const char* name : {"input_prefix", "input_suffix"})
        if (!fields.find(name))
            fields.refuse(text("Missing required parameter: '", name, "'."),
                          "missing_required_parameter", name);
    read_files(fields, wish);

    // An editor asks for no token at all to have its files read ahead.
    OrderedJson completion = completion_body(body, prefix);
    const bool only_reads = member(completion, "max_tokens") == 0;
    if (only_reads) completion["max_tokens"] = 1;
    if (fields.problem()) return *fields.problem();
    auto params = read_completion_params(completion, limits);
    if (!params.ok()) return params;
    params->source = "input_prefix";
    params->max_tokens_param = "n_predict";
    if (only_reads) params->max_tokens = 0;
    params->middle = std::move(wish);
    return params;
}

// Returns the members that `response_fields` names, e.g. "timings/prompt_n", as llama.cpp does.
OrderedJson with_fields(const OrderedJson& answer, const OrderedJson& names) {
    if (!names.is_array() || names.empty()) return answer;
    OrderedJson out = OrderedJson::object();
    for (const OrderedJson& name : names) {
        if (!name.is_string()) continue;
        const auto& path = name.get_ref<const std::string&>();
        const OrderedJson* at = &answer;
        for (std::size_t begin = 0; begin <= path.size() && !at->is_null();) {
            const std::size_t end = std::min(path.find('/', begin), path.size());
            at = &member(*at, path.substr(begin, end - begin));
            begin = end + 1;
        }
        if (!at->is_null()) out[path] = *at;
    }
    return out;
}

class InfillReply : public ReplyWriter {
  public:
    explicit InfillReply(WriterInputs inputs)
        : ReplyWriter(Dialect::openai),
          model_(std::move(inputs.header.model)),
          fields_(member(inputs.body, "response_fields")),
          was_cut_(inputs.params.middle && inputs.params.middle->was_cut) {}

    OrderedJson whole(std::span<const AnswerChoice> choices, const AnswerTotals& totals) override {
        return with_fields(last(choices[0].content, choices[0], totals), fields_);
    }

    Events begin(std::uint64_t) override { return {}; }

    Events say(std::size_t index, ReasonedText text, std::span<const TokenText>) override {
        has_line_end_ = has_line_end_ || text.content.find('\n') != std::string::npos;
        const OrderedJson piece{{"index", index},
                                {"content", text.content},
                                {"tokens", OrderedJson::array()},
                                {"stop", false},
                                {"id_slot", -1}};
        return {{dump_json(piece)}};
    }

    Events call(std::size_t, const CallPiece&, const std::string&) override { return {}; }

    Events end_choice(std::size_t, const AnswerChoice& choice,
                      const AnswerTotals* totals) override {
        return {{dump_json(with_fields(last("", choice, *totals), fields_))}};
    }

    Events end(const AnswerTotals&) override { return {}; }

  private:
    OrderedJson last(const std::string& content, const AnswerChoice& choice,
                     const AnswerTotals& totals) const {
        const bool is_limited = choice.finish_reason == "length";
        const Usage& usage = totals.usage;
        return {{"index", 0},
                {"content", content},
                {"tokens", OrderedJson::array()},
                {"id_slot", -1},
                {"stop", true},
                {"model", model_},
                {"tokens_predicted", usage.completion_tokens},
                {"tokens_evaluated", usage.prompt_tokens},
                {"has_new_line", has_line_end_ || content.find('\n') != std::string::npos},
                {"truncated", was_cut_},
                {"stop_type", !choice.stop.empty() ? "word"
                              : is_limited         ? "limit"
                                                   : "eos"},
                {"stopping_word", choice.stop},
                {"tokens_cached", usage.prompt_tokens + usage.completion_tokens},
                {"timings", timings_json(totals.stats, usage)},
                {"moex", provenance_json(totals)}};
    }

    const std::string model_;
    const OrderedJson fields_;
    const bool was_cut_;
    bool has_line_end_ = false;
};

std::unique_ptr<ReplyWriter> write_infill(WriterInputs inputs) {
    return std::make_unique<InfillReply>(std::move(inputs));
}

}  // namespace

const CompletionEndpoint infill_endpoint{.read = read_infill, .write = write_infill};

}  // namespace moex
