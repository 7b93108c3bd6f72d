// Runs one completion request from its parsed parameters to its answer: submits the sequences,
// turns their tokens into events or one body, and cancels the sequences if the client disconnects.
// Threads: start() runs on a thread of the TextPool, tokens arrive on the engine's thread, a
// disconnect on the connection's strand.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hub/api/api_options.h"
#include "hub/api/jobs/answer_form.h"
#include "hub/api/jobs/answer_mask.h"
#include "hub/api/jobs/answer_parts.h"
#include "hub/api/jobs/answer_text.h"
#include "hub/api/jobs/event_gate.h"
#include "hub/api/jobs/reply_writer.h"
#include "hub/api/stream_fleet.h"
#include "hub/engine/engine.h"

namespace moex {

// moex.late_ms and late_max: up to `calls_max` expert calls of an answer, over all its choices, may
// be late: the hub waits for each of these calls no longer than `wait`.
struct LateWish {
    Duration wait{};
    std::uint32_t calls_max = 0;
};

struct ApiJobInputs {
    Engine* engine = nullptr;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::shared_ptr<const ApiObserver> observer;
    std::unique_ptr<ReplyWriter> writer;
    CompletionParams params;
    std::vector<std::vector<TokenId>> prompts;  // each prompt is answered params.n times
    std::vector<std::string> echoes;            // [prompts], the text to send before each answer
    std::vector<TokenId> stop_ids;
    ExpertMode experts;  // the request's expert mode; "exact" has no speculator
    LateWish late;
    std::optional<std::uint32_t> draft_tokens;  // tokens to draft per step; empty: the hub chooses
    bool stores_pages = true;                   // false: no page is kept on disk (moex.store)
    // Of pages that the client has sent (moex.pages, jobs/taken_pages.h); empty: the client's own.
    std::string scope;
    bool stays_here = false;  // no worker computes whole layers of the answer (moex.spans)
    // The grammar that the masks follow, and the tools that it weakens; null: any text is allowed.
    std::shared_ptr<const AnswerRules> rules;
    // One mask for each choice; empty: any text is allowed.
    std::vector<std::shared_ptr<AnswerMask>> masks;
    std::optional<CallSyntax> call_syntax;    // set if the answer may call tools
    std::optional<ChannelBegin> channels;     // set if the model answers in channels
    bool splits_reasoning = false;            // true: separate the answer's <think> block
    bool begins_in_reasoning = false;         // the prompt ends inside a <think> block
    std::string client;                       // client's name for round-robin scheduling
    std::shared_ptr<RequestAccount> account;  // account charged for the tokens; null: none
    std::uint32_t context_tokens = 0;
    std::size_t vocab_size = 0;  // number of logits
    TimePoint received_at{};
    // The journal of the stream, for the other hubs of a fleet; null: there is none.
    StreamFleet* fleet = nullptr;
    std::string stream_id;            // empty: the hub is in no fleet
    std::vector<AnswerToken> tokens;  // the answer so far, of the hub that began it
};

class ApiJob : public std::enable_shared_from_this<ApiJob> {
  public:
    ApiJob(ApiJobInputs inputs, std::shared_ptr<HttpResponder> responder);
    ~ApiJob();  // settles the account
    void start();

  private:
    struct Choice {
        AnswerText text;
        AnswerParts parts;
        AnswerChoice answer;
        std::uint32_t cached_tokens = 0, cached_tokens_disk = 0;
        // Number of the answer's tokens that were sent to the client.
        std::uint32_t counted_tokens = 0;
        std::vector<CalledFunction> judged_calls;  // calls of weakened tools, judged when complete
        bool is_judged = false;                    // the last call is of a weakened tool
        bool ended = false, cancelling = false;
        std::size_t num_call_ids = 0;
        bool has_progress = false;  // events have reported progress of the prompt
        TimePoint first_token_at{}, last_token_at{};
        Duration prompt_took{};  // PromptProgress::elapsed
    };

    void open_gate();
    std::shared_ptr<TokenMask> mask_of(std::size_t index) const;
    void give_up();  // cancels every sequence
    void end_key();  // cancels every sequence, as the client's key is no longer valid
    std::vector<GenerationId> submitted();
    void cancel_choice(std::size_t index);

    void on_prompt(std::size_t index, PromptProgress progress);
    void send_progress(std::size_t index, const PromptProgress& progress);
    void on_token(std::size_t index, const TokenEvent& event);
    void replay();
    std::string make_call_id(std::size_t index);
    void on_end(std::size_t index, const GenerationEnd& end);
    void fail(const Refusal& refusal);
    void on_all_ended();
    std::string finish_reason(std::size_t index, const GenerationEnd& end) const;
    OrderedJson notes() const;

    void show(std::size_t index, AnswerText::Shown shown, bool is_last = false);
    void show_times(std::size_t index);
    void show_calls(std::size_t index, std::vector<CallPiece> pieces);
    void keep_judged(Choice& choice, const CallPiece& piece) const;
    std::uint64_t prompt_tokens() const;
    // Returns a function that charges the account for the tokens of choice `index` that were not
    // sent to the client before. The returned function runs once an event has been sent.
    std::function<void()> counts_on_sent(std::size_t index);
    void add_totals(const GenerationStats& stats);
    AnswerTotals totals() const;
    void send(std::size_t index, ReplyWriter::Events events);
    void send_whole();
    void observe_latency() const;
    void begin_stream();
    bool echoes_scores() const { return inputs_.params.echo && inputs_.params.logprobs; }
    std::vector<TokenText> prompt_texts(std::size_t index,
                                        const std::vector<SampledToken>& scores) const;
    Usage usage() const;

    ApiJobInputs inputs_;
    std::shared_ptr<HttpResponder> responder_;  // empty once answered
    // The following members are used by one thread at a time: first the thread that runs start(),
    // then the engine's thread.
    std::vector<Choice> choices_;
    std::size_t num_ended_ = 0;
    bool is_replaying_ = false;  // a token of inputs_.tokens passes, which the journal has
    bool is_stopping_ = false;   // the hub stops: another one may go on
    bool stream_begun_ = false, answered_ = false, failed_ = false, prompt_counted_ = false;
    GenerationStats totals_;

    EventGate gate_;  // opens when all sequences are submitted

    std::mutex mutex_;  // guards the following members
    bool abandoned_ = false, key_ended_ = false;
    std::vector<GenerationId> ids_;  // [choices], ids of the submitted sequences
};

}  // namespace moex
