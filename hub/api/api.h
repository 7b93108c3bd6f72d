// The HTTP API over the engine, in the dialects of OpenAI, Anthropic and Ollama: it takes requests,
// and answers with bodies or streams of events. It knows requests and responders; sockets belong to
// hub/net. README.md of this folder is the manual of the API.
// The first byte of a stream leaves with its first token, so that a failure before it is a plain
// answer with its own status.
// Threads: a handler only queues its request. The threads of the TextPool read bodies, render
// templates and tokenise texts.
// Source: OpenAI API reference; llama.cpp's server tests for the order of a stream.
#pragma once

#include <memory>
#include <string>

#include "hub/api/api_options.h"
#include "hub/api/http.h"
#include "hub/api/text_pool.h"
#include "hub/engine/engine.h"
#include "hub/model/chat_template.h"
#include "hub/model/package/package.h"

namespace moex {

struct CompletionEndpoint;
struct ApiState;  // defined in api_state.h, which only this room includes
struct EmbeddingEndpoint;

class Api {
  public:
    // `tokenizer` and `chat_template` may be null (a package without them). Then prompts have to be
    // token ids, and chats are answered with 400.
    Api(std::shared_ptr<const ModelPackage> package, std::shared_ptr<const Tokenizer> tokenizer,
        std::shared_ptr<const ChatTemplate> chat_template, Engine& engine, ApiOptions options,
        ApiObserver observer = {});
    ~Api();  // drops requests that wait for a thread of the pool

    // One handler for each route; the caller has matched path and method.
    // A handler does not block and does not throw. It answers its request exactly once, now or
    // later.
    using Responder = std::shared_ptr<HttpResponder>;
    void chat(HttpRequest request, Responder responder);
    void complete(HttpRequest request, Responder responder);
    void infill(HttpRequest request, Responder responder);   // llama.cpp's /infill
    void respond(HttpRequest request, Responder responder);  // /v1/responses
    void anthropic_message(HttpRequest request, Responder responder);
    void anthropic_count(HttpRequest request, Responder responder);
    // The number of tokens in the prompt of a chat, or of a Responses request.
    void chat_count(HttpRequest request, Responder responder);
    void respond_count(HttpRequest request, Responder responder);
    void ollama_chat(HttpRequest request, Responder responder);
    void ollama_generate(HttpRequest request, Responder responder);
    void ollama_show(HttpRequest request, Responder responder);
    void ollama_tags(HttpRequest request, Responder responder);
    void ollama_ps(HttpRequest request, Responder responder);
    void ollama_embeddings(HttpRequest request, Responder responder);
    // `request.rest` is the id of a resumable stream.
    void resume_stream(HttpRequest request, Responder responder);
    void stop_stream(HttpRequest request, Responder responder);
    void ollama_embed(HttpRequest request, Responder responder);
    void embed(HttpRequest request, Responder responder);  // /v1/embeddings
    // /v1/prefill: the keys and values of a prompt, for a device that goes on by itself.
    void prefill(HttpRequest request, std::shared_ptr<ByteResponder> responder);
    // /v1/pages: keys and values that a client has computed; `request.rest` is the name of a text.
    void open_pages(HttpRequest request, Responder responder);
    void take_pages(HttpRequest request, Responder responder);
    void forget_pages(HttpRequest request, Responder responder);
    void tokenize(HttpRequest request, Responder responder);
    void detokenize(HttpRequest request, Responder responder);
    void apply_template(HttpRequest request, Responder responder);
    void props(HttpRequest request, Responder responder);
    void models(HttpRequest request, Responder responder);
    void model(HttpRequest request, Responder responder);  // `request.rest` is the model's name

    // Returns true if the chat template has a variable for the level of thinking. Any thread may
    // call it.
    bool has_reasoning_effort() const;

    // Ends resumable streams that no client resumed in time, and drops pages of clients after some
    // minutes without use. The caller calls this function once a second.
    void sweep_streams();
    // Ends a stream that another hub has taken over. Any thread may call it.
    void drop_stream(const std::string& stream_id);

  private:
    using Answer = Checked<HttpResponse> (ApiState::*)(const HttpRequest&) const;
    void queue_completion(HttpRequest request, const CompletionEndpoint& endpoint,
                          Responder responder);
    void queue_embedding(HttpRequest request, const EmbeddingEndpoint& endpoint,
                         Responder responder);
    // Runs `work` on a thread of the pool, unless the client has disconnected before `work` begins.
    void queue(HttpRequest request, Responder responder,
               std::function<void(const ApiState&, const HttpRequest&, const Responder&)> work);
    void queue_answer(HttpRequest request, Responder responder, Answer answer);

    std::shared_ptr<ApiState> state_;
    // The destructor stops its threads. Jobs that translate pages hold a weak reference.
    std::shared_ptr<TextPool> texts_;
};

}  // namespace moex
