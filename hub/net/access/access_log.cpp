#include "hub/net/access/access_log.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "hub/net/http/asio.h"
#include "protocol/text.h"

namespace moex::net {
namespace {

constexpr std::size_t target_chars_max = 200;

std::string utc_now() {
    const auto now = std::chrono::system_clock::now();
    const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
    const auto millis =
        std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() %
        1000;
    std::tm parts{};
    gmtime_r(&seconds, &parts);

    char day[32], whole[48];
    std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &parts);
    std::snprintf(whole, sizeof whole, "%s.%03dZ", day, static_cast<int>(millis));
    return whole;
}

}  // namespace

void AccessLog::Close::operator()(std::FILE* file) const {
    if (file != stdout) std::fclose(file);
}

AccessLog::File AccessLog::open(const std::filesystem::path& path) {
    if (path.empty()) return nullptr;
    if (path == "-") return File(stdout);

    // Mode "e" (O_CLOEXEC): child processes do not inherit the file.
    File file(std::fopen(path.c_str(), "ae"));
    if (!file)
        throw std::runtime_error(
            text(path.string(), ": cannot append the access log: ", std::strerror(errno)));
    return file;
}

AccessLog::AccessLog(std::filesystem::path file, bool json)
    : path_(std::move(file)),
      json_(json),
      file_(open(path_)) {}

void AccessLog::reopen() {
    File fresh = open(path_);
    const std::lock_guard lock(mutex_);
    file_ = std::move(fresh);
}

void AccessLog::write(const AccessLine& line) {
    if (!is_on()) return;
    const std::string time = utc_now();
    const std::string whole = json_ ? access_json(line, time) + '\n'
                                    : text("time=", time, ' ', access_text(line), '\n');

    // Each line is one write, so lines of several threads never mix, and a full disk loses whole
    // lines only.
    const std::lock_guard lock(mutex_);
    std::fwrite(whole.data(), 1, whole.size(), file_.get());
    std::fflush(file_.get());
}

std::string peer_network(std::string_view address) {
    boost::system::error_code error;
    const auto parsed = asio::ip::make_address(std::string(address), error);
    if (error) return "-";

    const bool is_mapped = parsed.is_v6() && parsed.to_v6().is_v4_mapped();
    if (parsed.is_v4() || is_mapped) {
        auto bytes = is_mapped
                         ? asio::ip::make_address_v4(asio::ip::v4_mapped, parsed.to_v6()).to_bytes()
                         : parsed.to_v4().to_bytes();
        bytes[3] = 0;
        return asio::ip::address_v4(bytes).to_string() + "/24";
    }

    auto bytes = parsed.to_v6().to_bytes();
    std::fill(bytes.begin() + 6, bytes.end(), 0);
    return asio::ip::address_v6(bytes).to_string() + "/48";
}

namespace {

// Returns the request's target without its query, which may have private data, and cuts it to a
// fixed length.
std::string_view shown_target(const AccessLine& line) {
    return line.raw_target.substr(0, line.raw_target.find('?')).substr(0, target_chars_max);
}

}  // namespace

std::string access_json(const AccessLine& line, std::string_view time) {
    const auto or_null = [](std::string_view word) {
        return word.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(word);
    };
    const nlohmann::ordered_json object{
        {"time", time},
        {"method", or_null(line.method)},
        {"target", or_null(shown_target(line))},
        {"status", line.status},
        {"bytes", line.body_bytes},
        {"ms", std::chrono::duration<double, std::milli>(line.took).count()},
        {"end", line.whole ? "whole" : "cut"},
        {"id", or_null(line.id)},
        {"peer", peer_network(line.peer_address)},
        {"key", or_null(line.key_id)}};
    return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string access_text(const AccessLine& line) {
    const auto or_dash = [](std::string_view word) { return word.empty() ? "-" : word; };

    char millis[32];
    std::snprintf(millis, sizeof millis, "%.1f",
                  std::chrono::duration<double, std::milli>(line.took).count());
    return text("method=", or_dash(line.method), " target=", or_dash(shown_target(line)),
                " status=", line.status, " bytes=", line.body_bytes, " ms=", millis,
                " end=", line.whole ? "whole" : "cut", " id=", or_dash(line.id),
                " peer=", peer_network(line.peer_address), " key=", or_dash(line.key_id));
}

}  // namespace moex::net
