// The table of routes, and the search for the row of a path.
#include <span>
#include <vector>

#include "hub/api/openapi.h"
#include "hub/net/routes/route.h"
#include "hub/net/routes/routes.h"

namespace moex::net {
namespace {

constexpr std::nullopt_t open_to_all = std::nullopt;

// Bytes of a request with pages of keys and values: one page of 128 tokens of most models, and less
// than what one client may have in the queue for texts.
constexpr std::uint64_t page_bytes_max = 15u << 20;

constexpr Route get(const char* path, Handler handler, std::optional<Role> role) {
    return {"GET", path, handler, role};
}

constexpr Route remove(const char* path, Handler handler, std::optional<Role> role) {
    return {"DELETE", path, handler, role};
}

// Makes the row of a route that works on a text: it needs an API key and is rate limited.
constexpr Route post_text(const char* path, Handler handler) {
    return {"POST", path, handler, Role::api, Work::text};
}

constexpr Route lenders(const char* method, const char* path, Handler handler) {
    Route row{method, path, handler, Role::join};
    row.door = Door::join;
    return row;
}

constexpr Route hosts(const char* method, const char* path, Handler handler,
                      Door door = Door::host) {
    Route row{method, path, handler, Role::admin};
    row.door = door;
    return row;
}

constexpr Route route_table[] = {
    // the pages and scripts: their names are a fixed table; the files are embedded in the binary or
    // in the folder of --static
    get("/", &Routes::serve_asset, open_to_all),
    get("/*", &Routes::serve_asset, open_to_all),

    get("/weights/*", &Routes::serve_blob, open_to_all)
        .says("An expert's weights, by their SHA-256; ranges and ETag.")
        .with_rest("sha256"),
    get(worker_path, &Routes::refuse_plain_worker, open_to_all)
        .says("The WebSocket of contributors; 101 after the upgrade (protocol/PROTOCOL.md)."),

    get("/health", &Routes::serve_health, open_to_all)
        .says("Returns 200 if requests can be answered now, and otherwise 503.", "Health"),
    get("/v1/health", &Routes::serve_health, open_to_all).says("The same as /health.", "Health"),
    get("/metrics", &Routes::serve_metrics, Role::admin).says("Counters for Prometheus, as text."),
    get("/api/status", &Routes::serve_status, Role::api)
        .says("The figures of the status page.", "Status"),
    get("/api/history", &Routes::serve_history, Role::api)
        .says("The last hour, day or week (?span=1h, 24h or 7d).", "History"),
    get("/api/info", &Routes::serve_info, open_to_all)
        .says("The facts that every page reads first.", "Info"),
    get("/api/package", &Routes::list_package, Role::api)
        .says(
            "The files of the model's package: a device that loads them all can compute the model.",
            "Package"),
    get("/api/package/*", &Routes::serve_package_file, Role::api)
        .says("One file of the package, by its SHA-256; ranges and ETag.")
        .with_rest("sha256"),
    get("/api/signature", &Routes::serve_signature, open_to_all)
        .says("The hub's key, and its signatures of the package's manifest and of the pages.",
              "Signature"),
    get("/api/manifest", &Routes::serve_manifest, open_to_all)
        .says("The package's manifest.json, which has the hash of each of its files."),
    get("/openapi.json", &Routes::serve_openapi, open_to_all).says("This description."),

    get("/v1/models", &Routes::ask_api<&Api::models>, open_to_all)
        .says("The model that is served.", "ModelList"),
    get("/v1/models/*", &Routes::ask_api<&Api::model>, open_to_all)
        .says("One model.", "Model")
        .with_rest("model"),
    post_text("/v1/chat/completions", &Routes::ask_api<&Api::chat>)
        .says("An answer to a chat, whole or as a stream of events.", "ChatCompletion",
              "ChatRequest"),
    post_text("/v1/completions", &Routes::ask_api<&Api::complete>)
        .says("The continuation of a text, whole or as a stream of events.", "Completion",
              "CompletionRequest"),
    post_text("/v1/responses", &Routes::ask_api<&Api::respond>)
        .says("An answer as output items, whole or as a stream of events.", "Response",
              "ResponseRequest")
        .speaks(Dialect::responses),
    post_text("/v1/embeddings", &Routes::ask_api<&Api::embed>)
        .says("Texts as rows of numbers: the mean of the model's last hidden state, of length 1.",
              "EmbeddingList", "EmbeddingRequest"),
    post_text("/v1/prefill", &Routes::ask_api<&Api::prefill>)
        .says("The keys and values of a prompt, as a stream of pages (protocol/PROTOCOL.md).",
              nullptr, "PrefillRequest"),
    post_text("/v1/pages", &Routes::ask_api<&Api::open_pages>)
        .says("Begins a text whose keys and values the client sends; says which the hub has.",
              "TakenPages", "PagesRequest"),
    post_text("/v1/pages/*", &Routes::ask_api<&Api::take_pages>)
        .says("Takes pages of such a text, as records of bytes (protocol/PROTOCOL.md).",
              "TakenPages")
        .with_rest("pages")
        .takes_bytes(page_bytes_max),
    remove("/v1/pages/*", &Routes::ask_api<&Api::forget_pages>, Role::api)
        .says("Forgets such a text.", "TakenPages")
        .with_rest("pages"),
    get("/v1/streams/*", &Routes::ask_api<&Api::resume_stream>, Role::api)
        .says("The events of a stream with moex.resumable after Last-Event-ID, and those to come.")
        .with_rest("stream"),
    remove("/v1/streams/*", &Routes::ask_api<&Api::stop_stream>, Role::api)
        .says("Stops a stream with moex.resumable.", "StoppedStream")
        .with_rest("stream"),

    post_text("/v1/chat/completions/input_tokens", &Routes::ask_api<&Api::chat_count>)
        .says("The number of tokens in the prompt of a chat.", "InputTokens", "ChatRequest"),
    post_text("/v1/responses/input_tokens", &Routes::ask_api<&Api::respond_count>)
        .says("The number of tokens in the prompt of a Responses request.", "InputTokens",
              "ResponseRequest")
        .speaks(Dialect::responses),

    // the same routes without /v1, as llama.cpp offers them
    post_text("/chat/completions/input_tokens", &Routes::ask_api<&Api::chat_count>)
        .says("The same as /v1/chat/completions/input_tokens.", "InputTokens", "ChatRequest"),
    get("/models", &Routes::ask_api<&Api::models>, open_to_all)
        .says("The same as /v1/models.", "ModelList"),
    post_text("/chat/completions", &Routes::ask_api<&Api::chat>)
        .says("The same as /v1/chat/completions.", "ChatCompletion", "ChatRequest"),
    post_text("/completions", &Routes::ask_api<&Api::complete>)
        .says("The same as /v1/completions.", "Completion", "CompletionRequest"),
    post_text("/embeddings", &Routes::ask_api<&Api::embed>)
        .says("The same as /v1/embeddings.", "EmbeddingList", "EmbeddingRequest"),
    post_text("/responses", &Routes::ask_api<&Api::respond>)
        .says("The same as /v1/responses.", "Response", "ResponseRequest")
        .speaks(Dialect::responses),

    post_text("/v1/messages", &Routes::ask_api<&Api::anthropic_message>)
        .says("Anthropic's Messages: an answer as content blocks, whole or as events.",
              "AnthropicMessage", "AnthropicRequest")
        .speaks(Dialect::anthropic),
    post_text("/v1/messages/count_tokens", &Routes::ask_api<&Api::anthropic_count>)
        .says("The number of tokens in the prompt of a Messages request.", "AnthropicCount",
              "AnthropicCountRequest")
        .speaks(Dialect::anthropic),

    post_text("/api/chat", &Routes::ask_api<&Api::ollama_chat>)
        .says("Ollama's chat: lines of JSON, or one with `stream: false`.", "OllamaChat",
              "OllamaChatRequest")
        .speaks(Dialect::ollama),
    post_text("/api/generate", &Routes::ask_api<&Api::ollama_generate>)
        .says("Ollama's answer to one prompt, in the form of /api/chat.", "OllamaText",
              "OllamaGenerateRequest")
        .speaks(Dialect::ollama),
    post_text("/api/show", &Routes::ask_api<&Api::ollama_show>)
        .says("Ollama's description of the model.", "OllamaModel", "OllamaShowRequest")
        .speaks(Dialect::ollama),
    post_text("/api/embed", &Routes::ask_api<&Api::ollama_embed>)
        .says("Ollama's embeddings of one text or of several.", "OllamaEmbeddings",
              "OllamaEmbedRequest")
        .speaks(Dialect::ollama),
    post_text("/api/embeddings", &Routes::ask_api<&Api::ollama_embeddings>)
        .says("The embedding of one text, in Ollama's older form.", "OllamaEmbedding",
              "OllamaEmbeddingRequest")
        .speaks(Dialect::ollama),
    get("/api/ps", &Routes::ask_api<&Api::ollama_ps>, open_to_all)
        .says("Ollama's list of loaded models: the one that is served.", "OllamaTags")
        .speaks(Dialect::ollama),
    get("/api/tags", &Routes::ask_api<&Api::ollama_tags>, open_to_all)
        .says("Ollama's list of models: the one that is served.", "OllamaTags")
        .speaks(Dialect::ollama),
    get("/api/version", &Routes::serve_version, open_to_all)
        .says("The hub's version, at the path of Ollama's version.", "OllamaVersion")
        .speaks(Dialect::ollama),

    post_text("/infill", &Routes::ask_api<&Api::infill>)
        .says("The text between a prefix and a suffix, as llama.cpp's editors ask for it.",
              "Infill", "InfillRequest"),
    post_text("/tokenize", &Routes::ask_api<&Api::tokenize>)
        .says("A text as token ids.", "Tokens", "TokenizeRequest"),
    post_text("/detokenize", &Routes::ask_api<&Api::detokenize>)
        .says("Token ids as text.", "Text", "DetokenizeRequest"),
    post_text("/apply-template", &Routes::ask_api<&Api::apply_template>)
        .says("The prompt of a chat as the model sees it.", "Prompt", "ChatRequest"),
    get("/props", &Routes::ask_api<&Api::props>, Role::api)
        .says("Context, default sampling, and the chat template.", "Props"),

    lenders("GET", "/api/lend", &Routes::serve_lend)
        .says(
            "The experts that the hub lacks, for people who may lend a GPU; needs the join token.",
            "Lend"),
    lenders("GET", "/api/contributors", &Routes::serve_contributors)
        .says("The contributors that lent most; with ?key= the totals of that key.",
              "Contributors"),
    lenders("POST", "/api/contributors/forget", &Routes::forget_contributor)
        .says("Deletes the data of a contributor's key; signed with the key.", "Forgotten",
              "ForgetWish"),

    hosts("GET", "/api/admin/keys", &Routes::list_keys)
        .says("All keys by their public ids, with their usage.", "Keys"),
    hosts("POST", "/api/admin/keys", &Routes::make_key)
        .says("A new key. It is shown only once.", "Key", "KeyWish"),
    hosts("POST", "/api/admin/keys/revoke", &Routes::revoke_key)
        .says("Ends a key and the requests that run with it.", "KeyId", "KeyId"),
    hosts("GET", "/api/admin/join", &Routes::show_join_link)
        .says("The link by which workers join.", "JoinLink"),
    hosts("POST", "/api/admin/join/rotate", &Routes::rotate_join_link)
        .says("A new join link. The previous link is no longer valid.", "JoinLink", "Nothing"),
    hosts("POST", "/api/admin/workers/drain", &Routes::drain_worker)
        .says("Drains a worker: other workers take over its experts. Or ends the drain.",
              "WorkerOrder", "WorkerOrder"),
    hosts("POST", "/api/admin/workers/pin", &Routes::pin_worker)
        .says("Pins a worker: its experts do not move to new workers. Or unpins it.", "WorkerOrder",
              "WorkerOrder"),
    hosts("POST", "/api/admin/workers/ban", &Routes::ban_worker)
        .says("Removes a worker and bans its key.", "Ban", "BanWish"),
    hosts("GET", "/api/admin/bans", &Routes::list_bans)
        .says("The present and past bans of workers' keys, the latest first.", "Bans"),
    hosts("POST", "/api/admin/bans/lift", &Routes::lift_ban)
        .says("Lifts the bans of a key, named by its first characters.", "Ban", "BanKey"),
    hosts("GET", "/api/admin/settings", &Routes::show_settings)
        .says("The settings in force, each with its source.", "Settings"),
    hosts("POST", "/api/admin/claim", &Routes::claim_admin, Door::claim)
        .says("An admin key for the token of a one-time link.", "ClaimedKey", "Nothing"),

    // only with test_routes
    {"POST", test_path, &Routes::serve_test, Role::admin},
};

bool is_prefix(std::string_view pattern) { return pattern.back() == '*'; }

// Returns the known path that a client most likely meant by an unknown path. Clients write /v1
// twice or not at all, and add slashes at the end.
std::string meant_path(std::string_view path) {
    std::string_view bare = path;
    while (bare.size() > 1 && bare.back() == '/') bare.remove_suffix(1);
    const std::string without_v1(bare.starts_with("/v1/") ? bare.substr(3) : bare);

    for (const std::string& other : {std::string(bare), text("/v1", bare), without_v1})
        if (other != path && find_route(other)) return other;
    return {};
}

}  // namespace

// Returns the route table as the JSON of /openapi.json, which is the same for every hub of this
// version.
std::string describe_routes() {
    std::vector<DescribedRoute> described;
    for (const Route& route : route_table) {
        if (!route.summary) continue;
        std::string path(route.path);
        if (route.rest) path.replace(path.size() - 1, 1, text('{', route.rest, '}'));
        described.push_back({.method = route.method,
                             .path = std::move(path),
                             .summary = route.summary,
                             .request = route.request,
                             .takes_bytes = route.body_bytes_max > 0,
                             .answer = route.answer,
                             .dialect = route.dialect,
                             .takes_key = route.role.has_value(),
                             .counts = route.work == Work::text});
    }
    return openapi_document(described, MOEX_VERSION);
}

// Returns the part of `path` that the '*' of `pattern` matches; empty if `pattern` has no '*'.
std::string_view rest_of(std::string_view path, std::string_view pattern) {
    return is_prefix(pattern) ? path.substr(pattern.size() - 1) : std::string_view();
}

// Returns the row of a path; pages have no row. An exact path is preferred to a prefix, and a row
// for the method `method` to rows for other methods.
const Route* find_route(std::string_view path, std::string_view method) {
    const Route* found = nullptr;
    bool is_exact = false;
    for (const Route& route : route_table) {
        const std::string_view pattern(route.path);
        if (route.handler == &Routes::serve_asset) continue;
        if (pattern == path) {
            if (!is_exact || method == route.method) found = &route;
            is_exact = true;
            continue;
        }
        if (is_exact) continue;
        const std::string_view start = pattern.substr(0, pattern.size() - 1);
        if (is_prefix(pattern) && path.size() > start.size() && path.starts_with(start))
            if (!found || method == route.method) found = &route;
    }
    return found;
}

std::uint64_t body_bytes_max_of(std::string_view path, std::string_view method) {
    const Route* const route = find_route(path, method);
    return route && method == route->method ? route->body_bytes_max : 0;
}

const Route* page_route() { return &route_table[1]; }

Refusal no_such_route(std::string_view path) {
    const std::string_view shown = path.substr(0, 200);
    const std::string meant = meant_path(shown);
    return {
        404,
        text("no such route: ", shown,
             meant.empty() ? ""
                           : text("; did you mean ", meant, "? The API's base URL ends in /v1")),
        "not_found", ""};
}

std::string allowed_methods(const Route& route) {
    std::string methods;
    for (const char* method : {"GET", "POST", "DELETE"})
        for (const Route& row : route_table)
            if (std::string_view(row.path) == route.path && std::string_view(row.method) == method)
                methods += text(method, method == std::string_view("GET") ? ", HEAD, " : ", ");
    return methods + "OPTIONS";
}

std::vector<RouteInfo> server_routes() {
    std::vector<RouteInfo> routes;
    for (const Route& route : route_table)
        routes.push_back({route.method, route.path, !route.role,
                          route.door == Door::host || route.door == Door::claim,
                          route.door == Door::join});
    return routes;
}

// An unknown path is answered in the dialect of the paths around it. Anthropic's clients also use
// paths that OpenAI has, e.g. /v1/models, and send a header that no other dialect has.
Dialect dialect_of(const HttpRequest& request) {
    const std::string_view path = request.path;
    const Route* const route = find_route(path);
    if (route && route->dialect != Dialect::openai) return route->dialect;
    if (path.starts_with("/v1/messages") || request.header("anthropic-version"))
        return Dialect::anthropic;
    if (route) return Dialect::openai;
    const bool is_ollama = path.starts_with("/api/") && !path.starts_with("/api/admin/");
    return is_ollama ? Dialect::ollama : Dialect::openai;
}

}  // namespace moex::net
