// One completion request from parsed parameters to its answer: submits its sequences, turns
// their tokens into events or one body, and gives the sequences up when the client leaves.
// Threads: start() on a net thread, tokens on the
// engine's thread, disconnect on the connection's strand.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hub/api/api_options.h"
#include "hub/api/jobs/answer_mask.h"
#include "hub/api/jobs/answer_text.h"
#include "hub/api/jobs/channels.h"
#include "hub/api/jobs/reasoning.h"
#include "hub/api/jobs/reply_writer.h"
#include "hub/api/jobs/tool_calls.h"
#include "hub/engine/engine.h"

namespace moex {

// So many expert calls of an answer, over all its choices, are not waited for beyond `wait`.
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
    std::vector<std::vector<TokenId>> prompts;  // each answered params.n times
    std::vector<std::string> echoes;            // per prompt: text in front of the answer
    std::vector<TokenId> stop_ids;
    ExpertWay experts;  // "exact" without a speculator
    LateWish late;
    std::vector<std::shared_ptr<AnswerMask>> masks;  // of each choice; none: it is free
    std::optional<CallSyntax> call_syntax;           // where tools may be called
    std::optional<ChannelBegin> channels;            // where an answer in channels begins
    bool splits_reasoning = false;     // the answer's <think> block is told apart from the rest
    bool begins_in_reasoning = false;  // the prompt ends inside such a block
    std::string client;                // who takes turns as one
    std::shared_ptr<RequestAccount> account;  // whom tokens are counted for; null: nobody
    std::uint32_t context_tokens = 0;
    TimePoint received_at{};
};

class ApiJob : public std::enable_shared_from_this<ApiJob> {
  public:
    ApiJob(ApiJobInputs inputs, std::shared_ptr<HttpResponder> responder);
    ~ApiJob();  // settles the account
    void start();

  private:
    struct Choice {
        AnswerText text;
        std::optional<ReasoningSplitter> splitter;
        std::optional<ChannelSplitter> channels;  // in place of the two around it
        std::optional<CallSplitter> calls;        // where tools may be called, and then
        std::optional<StopFilter> stops;          // the stops of what is said beside the calls
        AnswerChoice answer;
        std::uint64_t reasoning_tokens = 0, undecided_tokens = 0;
        std::uint32_t cached_tokens = 0;
        std::uint32_t counted_tokens = 0;  // of the answer, that the client was sent
        bool ended = false, cancelling = false;
        TimePoint first_token_at{}, last_token_at{};
    };

    // Runs `event` now, or when all sequences are submitted:
    // until then the answer may still become a refusal.
    template <class Event>
    void deliver(Event event);
    void arm();
    void give_up();  // cancels every sequence
    void end_key();  // the same: the client's key opens nothing any more
    std::vector<GenerationId> submitted();
    void cancel_choice(std::size_t index);

    void on_token(std::size_t index, const TokenEvent& event);
    void on_end(std::size_t index, const GenerationEnd& end);
    void fail(const Refusal& refusal);
    void on_all_ended();

    void show(std::size_t index, AnswerText::Shown shown, bool is_last = false);
    void show_calls(std::size_t index, std::vector<CallPiece> pieces);
    ReasonedText split(Choice& choice, std::string text, bool is_last,
                       std::vector<CallPiece>& calls);
    ReasonedText split_channels(Choice& choice, std::string_view text, bool is_last,
                                std::vector<CallPiece>& calls) const;
    void say_until_stop(Choice& choice, std::string& content, bool is_last) const;
    template <class Splitter>
    void count_reasoning(Choice& choice, const Splitter& splitter) const;
    std::uint64_t prompt_tokens() const;
    // What the client had not been sent of choice `index`, for the account once it has left.
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
    // Touched by one thread at a time: start(), then the engine's.
    std::vector<Choice> choices_;
    std::size_t num_ended_ = 0;
    bool stream_begun_ = false, answered_ = false, failed_ = false, prompt_counted_ = false;
    GenerationStats totals_;

    std::mutex mutex_;  // of what follows
    bool armed_ = false, abandoned_ = false, key_ended_ = false;
    std::vector<std::function<void()>> early_;
    std::vector<GenerationId> ids_;  // [choices], grows while submitting
};

}  // namespace moex
