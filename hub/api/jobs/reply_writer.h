// The parts of an answer, and the interface of the writers that turn them into the JSON of a
// dialect. The job that runs an answer knows no dialect: it passes each part to its writer, and
// sends the events and bodies that the writer returns. Writers are pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/api/http.h"
#include "hub/api/jobs/answer_text.h"
#include "hub/api/jobs/reasoning.h"
#include "hub/api/jobs/tool_calls.h"
#include "hub/api/openai_request.h"
#include "hub/engine/engine.h"
#include "hub/model/json_fields.h"

namespace moex {

// The members that every JSON object of an answer has.
struct AnswerHeader {
    std::string id;  // id of the answer with the prefix of its dialect: chatcmpl-..., msg_...
    std::int64_t created_s = 0;  // Unix time
    std::string model, fingerprint;
};
// `own_id`: the id without its prefix; empty: random letters.
AnswerHeader make_answer_header(const char* id_prefix, std::string_view model,
                                std::string_view package_sha256, std::string_view own_id = {});

struct Usage {
    std::uint64_t prompt_tokens = 0, completion_tokens = 0;
    std::uint64_t cached_tokens = 0;       // prompt tokens that were computed for earlier requests
    std::uint64_t cached_tokens_disk = 0;  // cached tokens that were read from disk
    // Completion tokens that are thoughts; nullopt: the model does not reason.
    std::optional<std::uint64_t> reasoning_tokens;
};

// Totals over all sequences of a request.
struct AnswerTotals {
    Usage usage;
    GenerationStats stats;
    // Number of the answer's workers that were caught with a false answer by now.
    std::uint64_t doubted = 0;
    std::string experts = "exact";  // name of the expert mode: "exact" or a lossy mode
    // Increase of the perplexity in the expert mode of the answer: 0 for exact answers, nullopt if
    // it was not measured.
    std::optional<double> perplexity_excess;
    Duration took{};  // time since the request was received
    // What the answer does without (CompletionParams::notes), and "arguments_valid": true, false,
    // or null if no judgement is possible. Members of the reply's `moex` object.
    OrderedJson notes = OrderedJson::object();
};

struct CalledFunction {
    std::string id, name, arguments;  // JSON
};

// One choice of a request's answer. For a stream only the fields of the choice's end are filled,
// and not its text.
struct AnswerChoice {
    std::string content, reasoning;
    std::vector<CalledFunction> calls;
    std::vector<TokenText> tokens;         // filled if the request asks for logprobs
    std::vector<TokenText> prompt_tokens;  // filled if the prompt is echoed with its scores
    // Scores of all prompt tokens except the first; filled if the request asks for prompt_logprobs.
    std::vector<SampledToken> prompt_scores;
    std::string finish_reason;  // "stop", "length" or "tool_calls"
    std::string stop;           // the stop string that ended the answer; else empty
};

// Writes the parts of an answer in a dialect.
class ReplyWriter {
  public:
    using Events = std::vector<StreamEvent>;
    explicit ReplyWriter(Dialect dialect) : dialect_(dialect) {}
    virtual ~ReplyWriter() = default;

    // Returns the body of a whole answer.
    virtual OrderedJson whole(std::span<const AnswerChoice> choices,
                              const AnswerTotals& totals) = 0;

    // These functions return the events of a stream: for its beginning, for each piece of a choice,
    // for the end of each choice, and for the end of the stream.
    virtual Events begin(std::uint64_t prompt_tokens) = 0;
    // Returns nothing in dialects that have no form for the progress of a prompt.
    virtual Events progress(std::size_t index, const PromptProgress& progress) {
        (void)index, (void)progress;
        return {};
    }
    // Takes the times of a choice so far, which the next piece of its text shows. Dialects that
    // have no form for them ignore the call.
    virtual void time(const GenerationStats& stats, const Usage& usage) {
        (void)stats, (void)usage;
    }
    virtual Events say(std::size_t index, ReasonedText text, std::span<const TokenText> tokens) = 0;
    // `id` is the id of the tool call if the call begins with this piece; else it is empty.
    virtual Events call(std::size_t index, const CallPiece& piece, const std::string& id) = 0;
    // `totals` is null except for the choice that ends last.
    virtual Events end_choice(std::size_t index, const AnswerChoice& choice,
                              const AnswerTotals* totals) = 0;
    virtual Events end(const AnswerTotals& totals) = 0;
    // Returns the events that report a failure and end the stream early.
    virtual Events fail(const Refusal& refusal) {
        HttpResponse response = refusal_response(refusal, dialect_);
        return {{std::move(response.body), std::move(response.event_name)}};
    }

  private:
    const Dialect dialect_;
};

struct WriterInputs {
    AnswerHeader header;
    const CompletionParams& params;
    const OrderedJson& body;  // body of the request, as the client sent it
    std::shared_ptr<const Tokenizer> tokenizer;
    std::size_t num_choices = 1;
};

// Reads the bodies and writes the answers of one kind of completion in one dialect.
struct CompletionEndpoint {
    const char* id_prefix = "";
    Checked<CompletionParams> (*read)(const OrderedJson& body, const ParamLimits& limits) = nullptr;
    std::unique_ptr<ReplyWriter> (*write)(WriterInputs inputs) = nullptr;
    // Returns the answer to a body that needs no work of the model; nullopt: the body needs a
    // completion. This function may be null.
    std::optional<OrderedJson> (*answer_empty)(const OrderedJson& body) = nullptr;
};

}  // namespace moex
