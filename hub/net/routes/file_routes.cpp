// Handlers that send files: pages, blobs, the manifest and its signature, the model for browsers.
#include "hub/base/log.h"
#include "hub/base/signing_key.h"
#include "hub/net/routes/blobs.h"
#include "hub/net/routes/routes.h"
#include "protocol/thread_name.h"

namespace moex::net {
namespace {

// The content security policy: pages may load only files of the hub. The policy was tried with
// pages that use WASM, WebGPU, WebSocket and Cache.
constexpr const char* page_policy =
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src "
    "'self'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

}  // namespace

void Routes::serve_asset(HttpRequest request, Responder responder) const {
    const std::optional<Asset> found = hub_.assets.find(
        request.path, request.header("accept-encoding").value_or(""));
    // a page of --static was deleted after the start
    if (!found) return responder->refuse({404, "no such route", "not_found", ""});
    const Asset& asset = *found;
    HttpResponse head;
    head.content_type = asset.content_type;
    head.headers = {{"ETag", asset.etag},
                    {"Cache-Control", "no-cache"},
                    {"Content-Security-Policy", page_policy},
                    {"Cross-Origin-Opener-Policy", "same-origin"},
                    {"Cross-Origin-Embedder-Policy", "require-corp"}};
    if (asset.has_codings) head.headers.emplace_back("Vary", "Accept-Encoding");
    if (const auto known = request.header("if-none-match");
        known && etag_matches(*known, asset.etag)) {
        head.status = 304;
        return responder->respond(std::move(head));
    }
    if (!asset.coding.empty()) head.headers.emplace_back("Content-Encoding", asset.coding);
    responder->respond_bytes(std::move(head), asset.bytes, asset.keep);
}

void Routes::serve_blob(HttpRequest request, Responder responder) const {
    const std::string& name = request.rest;
    const Result<Sha256> hash = parse_sha256(name);
    const bool is_hash = hash && to_hex(*hash) == name;
    if (is_hash && hub_.package->has_blob(*hash)) {
        auto answer = [this, hash = *hash, request = std::move(request),
                       responder = std::move(responder)] {
            answer_range(request, hub_.package, hub_.package->blob(hash), Keeps::anybody,
                         *responder);
        };
        return answer_checked(*hub_.package, *hash, std::move(answer));
    }

    const auto layer = is_hash && hub_.layers.find ? hub_.layers.find(*hash) : nullptr;
    if (!layer) return responder->refuse({404, "no such blob", "not_found", ""});
    BlobAnswer answer = answer_blob(request, layer->size(), text('"', name, '"'));
    if (answer.head.status == 416 || answer.head.status == 304)
        return responder->respond(std::move(answer.head));
    responder->respond_bytes(std::move(answer.head),
                             ByteView(*layer).subspan(answer.offset, answer.size), layer);
}

// Calls `answer` on a thread that may compute the blob's SHA-256: this one has other connections.
void Routes::answer_checked(const ModelPackage& package, const Sha256& hash,
                            std::function<void()> answer) const {
    if (!package.must_hash(hash)) return answer();
    asio::post(hub_.hash_threads, [answer = std::move(answer)] {
        name_thread("hash");
        answer();
    });
}

// Sends the manifest, without which the hub's signature says little. The weights may be served by
// another machine, but the manifest is the hub's.
void Routes::serve_manifest(HttpRequest request, Responder responder) const {
    const std::string& name = hub_.package->manifest_sha256();
    const std::string etag = text('"', name, '"');
    HttpResponse head;
    head.content_type = "application/json";
    head.headers = {{"ETag", etag}, {"Cache-Control", "no-cache"}};
    if (const auto known = request.header("if-none-match"); known && etag_matches(*known, etag)) {
        head.status = 304;
        return responder->respond(std::move(head));
    }
    const ByteView manifest = hub_.package->file(parse_sha256(name).value()).value();
    responder->respond_bytes(std::move(head), manifest, hub_.package);
}

Result<SignedManifest> Routes::sign_manifest_of(const ModelPackage& package) const {
    const Sha256 manifest = parse_sha256(package.manifest_sha256()).value();
    return hub_.options.signing_key->sign_manifest(manifest, package.file(manifest).value().size());
}

// Signs at each request, because the pages of --static may change. A signature takes 50 us.
void Routes::serve_signature(HttpRequest, Responder responder) const {
    const std::shared_ptr<const SigningKey>& key = hub_.options.signing_key;
    if (!key) return responder->refuse({404, "this hub signs nothing", "not_signed", ""});

    const std::string lines = hub_.assets.lines();
    const auto signed_manifest = sign_manifest_of(*hub_.package);
    const auto pages = key->sign(pages_text(lines));
    if (!signed_manifest.ok() || !pages.ok())
        return responder->refuse({500, "the hub cannot sign", "internal", ""});

    nlohmann::json answer = nlohmann::json::parse(signed_manifest_to_json(*signed_manifest));
    answer["fingerprint"] = fingerprint_of(key->public_key());
    answer["pages"] = {{"lines", lines}, {"signature", to_hex(*pages)}};
    HttpResponse response = json_answer(answer);
    response.set_header("Cache-Control", "no-store");
    responder->respond(std::move(response));
}

// `bytes` are borrowed from `package`. The request's path names these bytes by their hash.
void Routes::answer_range(const HttpRequest& request, const SharedPackage& package,
                          const Result<ByteView>& bytes, Keeps keeps,
                          WireResponder& responder) const {
    const std::string& name = request.rest;
    if (!bytes) {
        log_rarely(LogLevel::error, "http: a blob cannot be read", kv("blob", name),
                   kv("why", bytes.error().message));
        return responder.refuse({500, "the blob cannot be read", "io_error", ""});
    }
    BlobAnswer answer = answer_blob(request, bytes->size(), text('"', name, '"'));
    if (keeps == Keeps::reader)
        answer.head.set_header("Cache-Control", "private, max-age=31536000, immutable");
    if (answer.head.status == 416 || answer.head.status == 304)
        return responder.respond(std::move(answer.head));
    responder.respond_bytes(std::move(answer.head), bytes->subspan(answer.offset, answer.size),
                            package);
}

Checked<void> Routes::check_gives_model() const {
    if (!hub_.options.give_model)
        return Refusal{404, "this hub does not give its model away (--give-model off)",
                       "model_not_given", ""};
    if (!given_package()->holds_all_blobs())
        return Refusal{404, "the hub itself lacks experts of its model", "package_incomplete", ""};
    return {};
}

// Returns the package that browsers load to compute answers themselves.
const Routes::SharedPackage& Routes::given_package() const {
    return hub_.options.device_package ? hub_.options.device_package : hub_.package;
}

void Routes::list_package(HttpRequest, Responder responder) const {
    if (const auto gives = check_gives_model(); !gives.ok())
        return responder->refuse(gives.refusal());

    nlohmann::json files = nlohmann::json::array();
    std::uint64_t all_bytes = 0;
    const ModelPackage& package = *given_package();
    for (const ModelPackage::File& file : package.files()) {
        files.push_back(
            {{"name", file.name}, {"sha256", to_hex(file.sha256)}, {"bytes", file.size_bytes}});
        all_bytes += file.size_bytes;
    }
    nlohmann::json list = {{"name", package.name()},
                           {"sha256", package.manifest_sha256()},
                           {"bytes", all_bytes},
                           {"files", std::move(files)}};
    if (hub_.options.signing_key) {
        const auto manifest = sign_manifest_of(package);
        if (!manifest.ok()) return responder->refuse({500, "the hub cannot sign", "internal", ""});
        list["signed"] = nlohmann::json::parse(signed_manifest_to_json(*manifest))["manifest"];
    }
    responder->respond(json_answer(list));
}

void Routes::serve_package_file(HttpRequest request, Responder responder) const {
    if (const auto gives = check_gives_model(); !gives.ok())
        return responder->refuse(gives.refusal());

    const std::string& name = request.rest;
    const Result<Sha256> hash = parse_sha256(name);
    if (!hash || to_hex(*hash) != name)
        return responder->refuse({404, "no such file", "not_found", ""});
    const ModelPackage& package = *given_package();
    answer_checked(
        package, *hash,
        [this, hash = *hash, request = std::move(request), responder = std::move(responder)] {
            const SharedPackage& given = given_package();
            const Result<ByteView> bytes = given->file(hash);
            if (!bytes && bytes.error().code == ErrorCode::not_found)
                return responder->refuse({404, "no such file", "not_found", ""});
            answer_range(request, given, bytes, Keeps::reader, *responder);
        });
}

}  // namespace moex::net
