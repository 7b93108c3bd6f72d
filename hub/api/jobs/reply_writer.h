// What an answer is made of, and who writes it down in a client's dialect. The job that runs an
// answer knows no dialect: it hands over what became known, and sends what comes back.
// Pure: a writer returns events and bodies, the job sends them.
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

// What every object of one answer carries.
struct AnswerHeader {
    std::string id;              // chatcmpl-..., msg_..., as the dialect wants it
    std::int64_t created_s = 0;  // Unix time
    std::string model, fingerprint;
};
AnswerHeader make_answer_header(const char* id_prefix, std::string_view model,
                                std::string_view package_sha256);

struct Usage {
    std::uint64_t prompt_tokens = 0, completion_tokens = 0;
    std::uint64_t cached_tokens = 0;                // of the prompts: computed for earlier requests
    std::optional<std::uint64_t> reasoning_tokens;  // of them; none: the model does not reason
};

// Sums of all sequences of one request.
struct AnswerTotals {
    Usage usage;
    GenerationStats stats;
    std::uint64_t doubted = 0;  // of its workers, those that were caught with a false answer by now
    std::string experts = "exact";  // or the lossy way in which they were asked
    // How much higher the perplexity of such answers is: 0 where they are exact, none where nobody
    // measured it.
    std::optional<double> perplexity_excess;
    Duration took{};  // since the request was read
};

struct CalledFunction {
    std::string id, name, arguments;  // JSON
};

// One of a request's answers. Of a stream: only its end is kept, not its words.
struct AnswerChoice {
    std::string content, reasoning;
    std::vector<CalledFunction> calls;
    std::vector<TokenText> tokens;         // with logprobs
    std::vector<TokenText> prompt_tokens;  // where the prompt is echoed with its scores
    // Where it is scored beside the answer: of all its tokens but the first.
    std::vector<SampledToken> prompt_scores;
    std::string finish_reason;  // stop, length or tool_calls
    std::string stop;           // the string that ended it; else empty
};

class ReplyWriter {
  public:
    using Events = std::vector<StreamEvent>;
    explicit ReplyWriter(Dialect dialect) : dialect_(dialect) {}
    virtual ~ReplyWriter() = default;

    // The body of a whole answer.
    virtual OrderedJson whole(std::span<const AnswerChoice> choices,
                              const AnswerTotals& totals) = 0;

    // A stream: its beginning; pieces of choices; the end of each choice; the end.
    virtual Events begin(std::uint64_t prompt_tokens) = 0;
    virtual Events say(std::size_t index, ReasonedText text, std::span<const TokenText> tokens) = 0;
    // `id`: of a call that begins with this piece; else empty.
    virtual Events call(std::size_t index, const CallPiece& piece, const std::string& id) = 0;
    // `totals`: with the last choice; else null.
    virtual Events end_choice(std::size_t index, const AnswerChoice& choice,
                              const AnswerTotals* totals) = 0;
    virtual Events end(const AnswerTotals& totals) = 0;
    // In the place of the rest.
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
    const OrderedJson& body;  // as the client sent it
    std::shared_ptr<const Tokenizer> tokenizer;
    std::size_t num_choices = 1;
};

// A way in: how a body is read and its answer written.
struct CompletionEndpoint {
    const char* id_prefix = "";
    Checked<CompletionParams> (*read)(const OrderedJson& body, const ParamLimits& limits) = nullptr;
    std::unique_ptr<ReplyWriter> (*write)(WriterInputs inputs) = nullptr;
    // Where a body asks for nothing: what is answered. May be null.
    std::optional<OrderedJson> (*answer_empty)(const OrderedJson& body) = nullptr;
};

}  // namespace moex
