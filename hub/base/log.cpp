#include "hub/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "hub/base/log_limit.h"

namespace moex {
namespace {

struct Log {
    std::shared_ptr<spdlog::logger> logger = [] {
        auto made = spdlog::stderr_color_mt("moex");
        made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
        made->set_level(spdlog::level::info);
        return made;
    }();
    bool json = false;
};
Log& the_log() {
    static Log log;
    return log;
}
spdlog::level::level_enum level_of(LogLevel level) {
    switch (level) {
        case LogLevel::debug: return spdlog::level::debug;
        case LogLevel::info: return spdlog::level::info;
        case LogLevel::warn: return spdlog::level::warn;
        case LogLevel::error: return spdlog::level::err;
    }
    return spdlog::level::err;
}

}  // namespace

void set_log(LogLevel level, bool json) {
    the_log().logger->set_level(level_of(level));
    the_log().json = json;
    the_log().logger->set_pattern(json ? "%v" : "%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
}

bool log_enabled(LogLevel level) { return the_log().logger->should_log(level_of(level)); }

void log_line(LogLevel level, std::string_view line) {
    if (!the_log().json) {
        the_log().logger->log(level_of(level), line);
        return;
    }

    const auto now_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
    const nlohmann::json object{{"time_ms", now_ms},
                                {"level", spdlog::level::to_string_view(level_of(level)).data()},
                                {"event", std::string(line)}};
    the_log().logger->log(level_of(level),
                          object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void log_line_rarely(LogLevel level, std::string_view line) {
    static LogLimit limit;
    const std::optional<std::uint64_t> left_out = limit.admit(line, now_steady());
    if (!left_out) return;
    log_line(level, *left_out == 0 ? std::string(line) : text(line, kv("left_out", *left_out)));
}

}  // namespace moex
