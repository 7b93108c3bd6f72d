// The state that all handlers of the API share. api.cpp makes it and has the handlers, api_jobs.cpp
// makes the jobs of requests that the model answers, api_prompts.cpp their prompts; api_fleet.cpp
// has the streams of several hubs, api_pages.cpp the pages that clients send, api_answers.cpp all
// other answers. The state is immutable once it is made, except for the masks and the resumable
// streams.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hub/api/api_options.h"
#include "hub/api/http.h"
#include "hub/api/jobs/completion_job.h"
#include "hub/api/jobs/embedding_job.h"
#include "hub/api/jobs/prefill_job.h"
#include "hub/api/resumable.h"
#include "hub/api/stream_fleet.h"
#include "hub/model/chat_template.h"
#include "hub/model/package/package.h"

namespace moex {

struct ApiState : std::enable_shared_from_this<ApiState> {
    using Responder = std::shared_ptr<HttpResponder>;

    std::shared_ptr<const ModelPackage> package;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::shared_ptr<const ChatTemplate> chat_template;
    Engine* engine = nullptr;
    ApiOptions options;
    std::shared_ptr<const ApiObserver> observer;
    std::uint32_t context_tokens = 0;
    // Bytes of the longest text that fits the context; 0: no tokenizer.
    std::uint64_t context_bytes_max = 0;
    // The chat template writes a system message also after other messages.
    bool takes_late_system = true;
    bool reasons = false;                   // the model knows the tags <think> ... </think>
    CallSyntax call_syntax;                 // the syntax in which the model writes tool calls
    std::optional<FillMiddle> fill_middle;  // how the model fills in the middle; empty: it cannot
    std::vector<TokenId> stop_ids;
    std::int64_t started_s = 0;
    // The first request whose answer must have a form creates the mask maker, since its creation
    // takes time with a large vocabulary.
    mutable std::once_flag masks_made;
    mutable std::shared_ptr<MaskMaker> masks;
    std::unique_ptr<ResumableStreams> streams;
    std::shared_ptr<PrefillPlaces> prefills = std::make_shared<PrefillPlaces>();

    ParamLimits limits(std::optional<std::uint64_t> seed = {}) const;
    OrderedJson model_json() const;
    // Each of these functions makes one answer, on a thread of the text pool; see api_answers.cpp.
    Checked<HttpResponse> tokenize(const HttpRequest& request) const;
    Checked<HttpResponse> detokenize(const HttpRequest& request) const;
    Checked<HttpResponse> apply_template(const HttpRequest& request) const;
    Checked<HttpResponse> count_anthropic(const HttpRequest& request) const;
    Checked<HttpResponse> count_chat(const HttpRequest& request) const;
    Checked<HttpResponse> count_responses(const HttpRequest& request) const;
    Checked<std::size_t> count_prompt(CompletionParams params) const;
    Checked<HttpResponse> ollama_show(const HttpRequest& request) const;
    OrderedJson props_json() const;
    OrderedJson ollama_tag() const;
    OrderedJson ollama_loaded() const;
    OrderedJson anthropic_models() const;
    OrderedJson ollama_details() const;
    std::string template_source() const;

    void run_completion(const HttpRequest& request, const CompletionEndpoint& endpoint,
                        const Responder& responder) const;
    struct Prepared {
        std::shared_ptr<ApiJob> job;
        std::shared_ptr<ResumableStream> stream;  // null: the job ends when its client disconnects
    };
    Checked<Prepared> prepare(const HttpRequest& request, const OrderedJson& body,
                              const CompletionEndpoint& endpoint, const Responder& responder,
                              StreamPlan plan) const;
    StreamPlan plan_of(const HttpRequest& request) const;
    StreamName name_of(const HttpRequest& request, const StreamPlan& plan, bool is_asked) const;
    // Sends a stream of another hub, or goes on with it; see api_fleet.cpp.
    void follow_stream(const HttpRequest& request, const Responder& responder,
                       std::uint64_t last_event, bool owner_is_gone) const;
    Checked<void> go_on(const HttpRequest& request, const Responder& responder,
                        std::uint64_t last_event, StreamFleet::Found found) const;
    Checked<Prepared> prepare_journaled(const HttpRequest& request,
                                        const CompletionEndpoint& endpoint, ApiJobInputs inputs,
                                        const StreamPlan& plan, const Responder& responder,
                                        bool is_asked) const;
    void send_local(const std::shared_ptr<ResumableStream>& stream, const Responder& responder,
                    std::uint64_t last_event) const;
    void run_embedding(const HttpRequest& request, const EmbeddingEndpoint& endpoint,
                       const Responder& responder) const;
    Checked<std::shared_ptr<EmbeddingJob>> prepare_embedding(const HttpRequest& request,
                                                             const EmbeddingEndpoint& endpoint,
                                                             const Responder& responder) const;
    Checked<std::shared_ptr<PrefillJob>> prepare_prefill(
        const HttpRequest& request, std::function<bool(std::function<void()>)> run_later,
        std::shared_ptr<ByteResponder> responder) const;
    // Pages that a client sends; see api_pages.cpp.
    void open_pages(const HttpRequest& request, const Responder& responder) const;
    // Returns the scope of pages of this client; empty: they have left, and the hub computes all.
    std::string scope_of_pages(const HttpRequest& request, const std::string& name) const;
    Checked<HttpResponse> take_pages(const HttpRequest& request) const;
    Checked<HttpResponse> forget_pages(const HttpRequest& request) const;
    // Tokenises one input. Refuses a text that does not fit the context, unless `truncates` allows
    // to cut the text.
    Checked<std::vector<TokenId>> encode_input(TextInput input, const char* source,
                                               bool truncates = false) const;
    using Prompts = std::vector<std::vector<TokenId>>;
    Checked<Prompts> encode_chat(const CompletionParams& params) const;
    Checked<Prompts> encode_texts(CompletionParams& params, std::vector<std::string>& echoes) const;
    // Makes the prompts of texts between a prompt and a suffix.
    Checked<Prompts> encode_middle(CompletionParams& params) const;
    Checked<void> check_bytes(std::uint64_t bytes, const char* source) const;
    bool begins_in_reasoning(const CompletionParams& params,
                             const std::vector<TokenId>& prompt) const;
    ChannelBegin begins_in_channel(const CompletionParams& params,
                                   const std::vector<TokenId>& prompt) const;
    // Sets the rules and the masks of an answer.
    Checked<void> make_masks(ApiJobInputs& inputs) const;
    // Finds out by a rendered chat whether the template takes a system message at any place.
    bool finds_late_system() const;
    bool has_effort_setting(const std::string& effort) const;
    Checked<void> check_model(const std::string& name) const;
    Checked<void> check_fits(const std::vector<TokenId>& prompt, const char* source) const;
    std::uint64_t tokens_max(const Prompts& prompts, std::uint32_t n,
                             std::uint32_t max_tokens) const;
};

HttpResponse json_response(const OrderedJson& body);

}  // namespace moex
