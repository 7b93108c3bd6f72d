#include "hub/fetch/web_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <ctime>

#include "protocol/check.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::size_t headers_max = 200;
constexpr std::size_t headers_bytes_max = 128u << 10;

void start_curl_once() {
    static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);
    MOEX_CHECK(started == CURLE_OK, "libcurl cannot start");
}

std::string_view trimmed(std::string_view value) {
    while (!value.empty() && std::isspace(static_cast<unsigned char>(value.front())))
        value.remove_prefix(1);
    while (!value.empty() && std::isspace(static_cast<unsigned char>(value.back())))
        value.remove_suffix(1);
    return value;
}

}  // namespace

// The answer of one request while it arrives.
struct WebClient::Transfer {
    const OnHead& on_head;
    const OnBody& on_body;
    const std::atomic<bool>* stop;
    CURL* curl;
    WebHead head;
    std::size_t header_bytes = 0;
    bool head_reported = false, is_stopped_by_caller = false, has_too_many_headers = false;

    bool is_cancelled() const { return stop != nullptr && stop->load(); }

    // Reports the head once. Returns false if the caller does not want the body.
    bool report_head() {
        if (head_reported) return !is_stopped_by_caller;
        head_reported = true;
        long status = 0;
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
        head.status = static_cast<int>(status);
        is_stopped_by_caller = !on_head(head);
        return !is_stopped_by_caller;
    }

    static std::size_t take_header(char* data, std::size_t, std::size_t size, void* self_) {
        auto& self = *static_cast<Transfer*>(self_);
        const std::string_view line(data, size);
        // An interim answer (100) or a proxy's answer is followed by another head.
        if (line.starts_with("HTTP/")) {
            self.head.headers.clear();
            return size;
        }

        self.header_bytes += size;
        if (self.header_bytes > headers_bytes_max || self.head.headers.size() >= headers_max) {
            self.has_too_many_headers = true;
            return 0;
        }
        const std::size_t colon = line.find(':');
        if (colon == std::string_view::npos) return size;
        std::string name(trimmed(line.substr(0, colon)));
        for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        self.head.headers[name] = std::string(trimmed(line.substr(colon + 1)));
        return size;
    }

    static std::size_t take_body(char* data, std::size_t, std::size_t size, void* self_) {
        auto& self = *static_cast<Transfer*>(self_);
        if (self.is_cancelled() || !self.report_head()) return 0;
        const ByteView bytes(reinterpret_cast<const std::byte*>(data), size);
        if (self.on_body(bytes)) return size;
        self.is_stopped_by_caller = true;
        return 0;
    }

    static int watch(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
        return static_cast<Transfer*>(self)->is_cancelled() ? 1 : 0;
    }
};

WebClient::WebClient(WebClientOptions options) : options_(std::move(options)) {
    start_curl_once();
    curl_ = curl_easy_init();
    MOEX_CHECK(curl_ != nullptr, "libcurl has no memory for a connection");
}

WebClient::~WebClient() { curl_easy_cleanup(curl_); }

Result<WebHead> WebClient::ask(const WebRequest& request, const OnHead& on_head,
                               const OnBody& on_body) {
    CURL* const curl = curl_;
    curl_easy_reset(curl);  // keeps open connections
    Transfer transfer{on_head, on_body, options_.stop, curl, {}};

    curl_easy_setopt(curl, CURLOPT_URL, request.address.url.c_str());
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, request.address.is_https ? "https" : "http");
    curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "moex-hub");
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, static_cast<long>(options_.connect_s));
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options_.stall_s));
    // A proxy of the environment serves https alone; plain http stays on this machine.
    if (!request.address.is_https) curl_easy_setopt(curl, CURLOPT_PROXY, "");
    if (!options_.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, options_.ca_file.c_str());
    if (!request.range.empty()) curl_easy_setopt(curl, CURLOPT_RANGE, request.range.c_str());

    curl_slist* list = nullptr;
    for (const std::string& header : request.headers)
        list = curl_slist_append(list, header.c_str());
    if (request.body != nullptr) {
        list = curl_slist_append(list, "Content-Type: application/json");
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body->c_str());
        curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE,
                         static_cast<curl_off_t>(request.body->size()));
    }
    const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> owned(list,
                                                                            &curl_slist_free_all);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);

    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Transfer::take_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Transfer::take_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Transfer::watch);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    char reason[CURL_ERROR_SIZE] = "";
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);

    const CURLcode result = curl_easy_perform(curl);
    if (transfer.is_cancelled()) return Error{ErrorCode::cancelled, "interrupted"};
    if (transfer.is_stopped_by_caller) return transfer.head;
    if (transfer.has_too_many_headers)
        return Error{ErrorCode::bad_field,
                     text(request.address.origin, " sends more than ", headers_max, " headers or ",
                          headers_bytes_max, " bytes of headers")};
    if (result != CURLE_OK) {
        const ErrorCode code = result == CURLE_PEER_FAILED_VERIFICATION ? ErrorCode::unauthorized
                               : result == CURLE_OPERATION_TIMEDOUT     ? ErrorCode::timeout
                                                                        : ErrorCode::unavailable;
        return Error{code, text(request.address.origin, ": ",
                                reason[0] != '\0' ? reason : curl_easy_strerror(result))};
    }
    (void)transfer.report_head();
    return transfer.head;
}

std::uint64_t retry_after_s(const WebHead& head) {
    const std::string value(head.header("retry-after"));
    if (value.empty()) return 0;
    std::uint64_t seconds = 0;
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), seconds);
    if (failure == std::errc() && end == value.data() + value.size()) return seconds;

    const std::time_t now = std::time(nullptr);
    const std::time_t when = curl_getdate(value.c_str(), nullptr);
    return when > now ? static_cast<std::uint64_t>(when - now) : 0;
}

}  // namespace moex
