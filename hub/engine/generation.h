// A generation as its caller sees it: the request, the events, and the end. hub/engine/engine.h
// takes these types. The engine's own state of a running generation is private to the engine.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hub/base/clock.h"
#include "hub/engine/scores.h"
#include "hub/model/package/embedding_form.h"
#include "protocol/bytes.h"

namespace moex {

using GenerationId = std::uint64_t;
class ExpertSpeculator;

// Most tokens that are drafted for a sequence in one step (hub/engine/draft_source.h).
inline constexpr std::uint32_t draft_tokens_max = 16;

struct GenerationRequest {
    std::vector<TokenId> prompt;  // the tokens of the prompt, at least one
    // The first tokens of the answer, which were drawn before, for example by another hub. The
    // generation goes on after them. They cause no TokenEvent, and count as completion tokens.
    std::vector<TokenId> answer;
    // The client that sent the request. Waiting clients are served round-robin, and only requests
    // of the same client share what was computed for a common prefix.
    std::string client;
    std::uint32_t max_tokens = 256;
    SamplingOptions sampling;
    std::uint32_t top_logprobs = 0;
    bool logprobs = false;  // if true, TokenEvent::token.logprob and top are filled for each token
    // Requests the scores of the prompt (echo): GenerationEnd::prompt_logprobs is filled; no
    // TokenEvent is sent for prompt tokens.
    bool prompt_logprobs = false;
    // Requests an embedding: no token is drawn, and GenerationEnd::hidden_mean is filled.
    bool hidden_mean = false;
    Pooling pooling = Pooling::mean;  // how the prompt's rows give the embedding
    // Selects a lossy mode: the rows of the answer use this speculator's guesses of experts. The
    // rows of the prompt stay exact, so that other requests may take over the prompt's cache pages.
    // The speculator must outlive the engine; with null the answer is exact.
    ExpertSpeculator* speculator = nullptr;
    // Latency budget for the rows of the answer, when they are computed for the first time: the
    // engine does not wait longer than `late_wait` for an expert's answer. It leaves out at most
    // `late_pairs_max` answers in the whole generation. The backend chooses the substitute for a
    // missing answer. With a `late_pairs_max` of 0 the engine waits for all answers. It also waits
    // for all answers of the prompt's rows and of rows that are computed again.
    Duration late_wait{};
    std::uint32_t late_pairs_max = 0;
    // Number of tokens to draft in each step, at most draft_tokens_max; 0: none. Empty: the
    // engine's default. The text does not depend on it.
    std::optional<std::uint32_t> draft_tokens;
    // Only requests of the same scope share what was computed for a common prefix, and pages of the
    // store; empty: the client's name.
    std::string scope;
    // If false, no page of this generation is kept in the page store (EngineOptions::page_store).
    bool stores_pages = true;
    // If true, no worker computes whole layers of this generation (hub/engine/span_backend.h).
    bool stays_here = false;
    // Requests the keys and values of the prompt: GenerationSink::on_page receives each full page,
    // from the page with this index on, and no token is drawn. The model must have neither windows
    // nor recurrent states. No worker computes whole layers.
    std::optional<std::uint32_t> pages_from;
    // If true, nothing is computed: the generation takes what the cache and the store have of the
    // prompt, gives the pages that `pages_from` asks for, and ends with FinishReason::length.
    // GenerationStats::cached_tokens says how many tokens they have.
    bool only_looks = false;
    // End-of-sequence token ids: a token with such an id ends the generation and causes no
    // TokenEvent.
    std::vector<TokenId> stop_ids;
};

enum class FinishReason { stop, length, cancelled, error };
const char* finish_reason_name(FinishReason reason);

// Statistics of the drafted tokens of a generation.
struct DraftStats {
    std::uint64_t steps = 0;   // steps that drew tokens
    std::uint64_t drafts = 0;  // steps that had drafted tokens
    std::uint64_t drafted_tokens = 0, accepted_tokens = 0;
    // [n]: number of drafts with exactly n accepted tokens
    std::array<std::uint64_t, draft_tokens_max + 1> accepted_histogram{};
    const char* kind = "";  // name of the source of the latest draft; "": no draft yet

    void add(const DraftStats& other);
};

// Statistics of a generation and of its experts' answers, summed over the generation's steps.
struct GenerationStats {
    std::uint32_t prompt_tokens = 0, completion_tokens = 0;
    bool speculative = false;
    // prompt tokens that were in the KV cache, because another generation had computed them
    std::uint32_t cached_tokens = 0;
    std::uint32_t cached_tokens_disk = 0;  // those cached tokens that were read from the page store
    Duration queued{}, prefill{}, decode{};  // decode: time from the first token to the last
    // distinct ids of the workers that contributed, including those that computed the cached tokens
    std::vector<std::uint64_t> workers;
    std::uint64_t pairs_remote = 0, pairs_local = 0, pairs_hedged = 0, pairs_verified = 0,
                  pairs_proven = 0, pairs_late = 0;
    DraftStats drafts;
};
struct TokenEvent {
    SampledToken token;
    std::uint32_t index = 0;  // index of the token in the answer; 0 for the first token
};
// How much of a generation's prompt has been computed.
struct PromptProgress {
    std::uint32_t total_tokens = 0;
    std::uint32_t cached_tokens = 0;  // GenerationStats::cached_tokens
    std::uint32_t ready_tokens = 0;   // tokens whose keys and values are in the KV cache
    Duration elapsed{};               // time since the generation left the queue
};
// A full page of keys and values of a prompt (GenerationRequest::pages_from).
struct PromptPage {
    std::uint32_t index = 0;  // in pages of EngineOptions::page_tokens
    Bytes rows;               // in the layout of protocol/kv_page.h
};
struct GenerationEnd {
    FinishReason reason = FinishReason::stop;
    Error error{ErrorCode::internal, {}};  // for FinishReason::error
    GenerationStats stats;
    // If prompt_logprobs was requested: the tokens prompt[1 ...], each with the log-probability
    // that the model gave it, [prompt_tokens - 1].
    std::vector<SampledToken> prompt_logprobs;
    // If hidden_mean was requested: the mean over the prompt's rows after the final norm, or the
    // one row that `pooling` names, [hidden_size].
    std::vector<float> hidden_mean;
};

// Callbacks of a generation. They run on the engine thread, possibly before submit() has returned.
// They must not block: a callback that has much to do posts the work to its own strand. Callbacks
// may call submit() and cancel().
struct GenerationSink {
    // After each step that computed rows of the prompt for the first time; may be empty. The call
    // after the last such step comes before the first token.
    std::function<void(const PromptProgress&)> on_prompt;
    std::function<void(const TokenEvent&)> on_token;
    // The pages that GenerationRequest::pages_from asks for, in order, each once.
    std::function<void(PromptPage)> on_page;
    std::function<void(const GenerationEnd&)> on_end;  // exactly once, last
};

}  // namespace moex
