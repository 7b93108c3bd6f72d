// Writes one line per event: constant text, then key=value. Output goes to stderr; stdout is for
// results.
//   log_info("dispatch: hedged", kv("call", id), kv("waited_ms", 23.8));
// Prompts, texts and keys are never logged.
#pragma once

#include <string>
#include <string_view>

#include "protocol/text.h"

namespace moex {

enum class LogLevel { debug, info, warn, error };
// Sets the lowest log level that is written. `json`: one JSON object per line instead of text.
void set_log(LogLevel level, bool json = false);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view line);

template <class Value>
std::string kv(std::string_view key, const Value& value) {
    return text(' ', key, '=', value);
}

template <class... Parts>
void log_at(LogLevel level, std::string_view event, const Parts&... parts) {
    if (log_enabled(level)) log_line(level, text(event, parts...));
}
// Logs a line at most once a minute. `event` and `parts` together are its cause; the line ends with
// the number of lines of the same cause that were left out before.
void log_line_rarely(LogLevel level, std::string_view line);
template <class... Parts>
void log_rarely(LogLevel level, std::string_view event, const Parts&... parts) {
    if (log_enabled(level)) log_line_rarely(level, text(event, parts...));
}
template <class... Parts>
void log_debug(std::string_view event, const Parts&... parts) {
    log_at(LogLevel::debug, event, parts...);
}
template <class... Parts>
void log_info(std::string_view event, const Parts&... parts) {
    log_at(LogLevel::info, event, parts...);
}
template <class... Parts>
void log_warn(std::string_view event, const Parts&... parts) {
    log_at(LogLevel::warn, event, parts...);
}
template <class... Parts>
void log_error(std::string_view event, const Parts&... parts) {
    log_at(LogLevel::error, event, parts...);
}

}  // namespace moex
