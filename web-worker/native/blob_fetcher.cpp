#include "web-worker/native/blob_fetcher.h"

#include <openssl/sha.h>

#include <fstream>
#include <optional>
#include <variant>

#include "web-worker/native/asio.h"

namespace moex::native {
namespace {

constexpr int attempts_max = 4;

// Its own call of OpenSSL: hub/base/sha256.h belongs to the hub, and protocol knows no library.
bool matches(ByteView bytes, const Sha256& hash) {
    Sha256 found{};
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
           reinterpret_cast<unsigned char*>(found.data()));
    return found == hash;
}

std::optional<Bytes> read_file(const std::filesystem::path& path, std::uint64_t size_bytes) {
    std::error_code ignored;
    if (std::filesystem::file_size(path, ignored) != size_bytes) return std::nullopt;
    std::ifstream in(path, std::ios::binary);
    Bytes bytes(size_bytes);
    if (!in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size_bytes)))
        return std::nullopt;
    return bytes;
}

}  // namespace

struct BlobFetcher::Connection {
    asio::io_context io;
    ssl::context tls{ssl::context::tls_client};
    std::optional<beast::tcp_stream> plain;
    std::optional<beast::ssl_stream<beast::tcp_stream>> secure;
    beast::flat_buffer buffer;

    void open(const FetcherOptions& options) {
        tcp::resolver resolver(io);
        const auto found = resolver.resolve(options.hub.host, options.hub.port);
        if (!options.hub.tls) {
            plain.emplace(io);
            wait(*plain, [&](auto done) { plain->async_connect(found, done); });
            return;
        }
        tls.set_default_verify_paths();
        if (!options.ca_file.empty()) tls.load_verify_file(options.ca_file);
        tls.set_verify_mode(options.insecure_tls ? ssl::verify_none : ssl::verify_peer);
        secure.emplace(io, tls);
        SSL_set_tlsext_host_name(secure->native_handle(), options.hub.host.c_str());
        if (!options.insecure_tls)
            secure->set_verify_callback(ssl::host_name_verification(options.hub.host));
        wait(*secure,
             [&](auto done) { beast::get_lowest_layer(*secure).async_connect(found, done); });
        wait(*secure, [&](auto done) { secure->async_handshake(ssl::stream_base::client, done); });
    }
    // Runs one operation to its end, or throws when it failed or took
    // too long: deadlines hold for asynchronous operations only.
    template <class Stream, class Start>
    void wait(Stream& stream, Start start) {
        beast::get_lowest_layer(stream).expires_after(std::chrono::seconds(30));
        beast::error_code result = asio::error::operation_aborted;
        start([&result](beast::error_code error, auto&&...) { result = error; });
        io.restart();
        io.run();
        if (result) throw beast::system_error(result);
    }
    template <class Function>
    auto with(Function function) {
        if (secure) return function(*secure);
        return function(*plain);
    }
};

BlobFetcher::BlobFetcher(FetcherOptions options, std::function<void(std::function<void()>)> post)
    : options_(std::move(options)),
      post_(std::move(post)),
      thread_([this] { run(); }) {}

BlobFetcher::~BlobFetcher() {
    ++*generation_;
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        jobs_.clear();
    }
    wake_.notify_all();
    thread_.join();
}

void BlobFetcher::fetch(const Sha256& hash, std::uint64_t size_bytes, Progress progress,
                        Done done) {
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back({hash, size_bytes, std::move(progress), std::move(done), *generation_});
    }
    wake_.notify_one();
}

void BlobFetcher::cancel() {
    ++*generation_;
    const std::lock_guard lock(mutex_);
    jobs_.clear();
}

void BlobFetcher::run() {
    for (;;) {
        Job job;
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
            if (stopping_) return;
            job = std::move(jobs_.front());
            jobs_.pop_front();
        }
        bool from_network = false;
        Result<Bytes> bytes = one(job, from_network);
        post_([job = std::move(job), bytes = std::move(bytes), from_network,
               generation = generation_]() mutable {
            if (job.generation != *generation) return;
            if (bytes.ok()) job.progress(job.size_bytes, from_network);
            job.done(std::move(bytes));
        });
    }
}

Result<Bytes> BlobFetcher::one(const Job& job, bool& from_network) {
    const std::filesystem::path cached = options_.cache.empty() ? std::filesystem::path{}
                                                                : options_.cache / to_hex(job.hash);
    if (!cached.empty()) {
        if (auto bytes = read_file(cached, job.size_bytes); bytes && matches(*bytes, job.hash))
            return std::move(*bytes);
        std::error_code ignored;
        // damaged, or of another size: fetched again
        std::filesystem::remove(cached, ignored);
    }
    from_network = true;
    Error last{ErrorCode::unavailable, "not tried"};
    for (int attempt = 0; attempt < attempts_max; ++attempt) {
        {
            std::unique_lock lock(mutex_);
            if (attempt > 0)
                wake_.wait_for(lock, std::chrono::milliseconds(200 << attempt),
                               [&] { return stopping_; });
            if (stopping_) return Error{ErrorCode::cancelled, "stopping"};
        }
        Result<Bytes> bytes = download(job);
        if (!bytes.ok()) {
            connection_.reset();
            last = bytes.error();
            continue;
        }
        if (!matches(*bytes, job.hash)) {
            last = {ErrorCode::hash_mismatch, text("blob ", to_hex(job.hash).substr(0, 12),
                                                   " from the hub does not match its hash")};
            continue;
        }
        if (!cached.empty()) {
            const std::filesystem::path part = cached.string() + ".part";
            std::ofstream out(part, std::ios::binary);
            out.write(reinterpret_cast<const char*>(bytes->data()),
                      static_cast<std::streamsize>(bytes->size()));
            out.close();
            std::error_code ignored;
            if (out) std::filesystem::rename(part, cached, ignored);
        }
        return bytes;
    }
    return last;
}

Result<Bytes> BlobFetcher::download(const Job& job) try {
    if (!connection_) {
        connection_ = std::make_unique<Connection>();
        connection_->open(options_);
    }
    http::request<http::empty_body> request{http::verb::get, text("/weights/", to_hex(job.hash)),
                                            11};
    request.set(http::field::host, options_.hub.authority());
    http::response_parser<http::vector_body<std::byte>> parser;
    parser.body_limit(job.size_bytes);
    connection_->with([&](auto& stream) {
        connection_->wait(stream, [&](auto done) { http::async_write(stream, request, done); });
        connection_->wait(stream, [&](auto done) {
            http::async_read(stream, connection_->buffer, parser, done);
        });
    });
    if (parser.get().result() != http::status::ok)
        return Error{ErrorCode::unavailable,
                     text("the hub answered ", parser.get().result_int(), " for a weight blob")};
    if (!parser.get().keep_alive()) connection_.reset();
    Bytes bytes = std::move(parser.get().body());
    if (bytes.size() != job.size_bytes)
        return Error{ErrorCode::hash_mismatch,
                     text("a blob of ", bytes.size(), " bytes, wanted ", job.size_bytes)};
    return bytes;
} catch (const std::exception& error) {
    return Error{ErrorCode::unavailable, error.what()};
}

}  // namespace moex::native
