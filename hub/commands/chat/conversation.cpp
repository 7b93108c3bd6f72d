#include "hub/commands/chat/conversation.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "protocol/text.h"

namespace moex {
namespace {

Conversation::Line reply(std::string text, bool is_error = false) {
    return {Conversation::Kind::command, std::move(text), is_error};
}

std::string_view trimmed(std::string_view words) {
    while (words.starts_with(' ')) words.remove_prefix(1);
    while (words.ends_with(' ')) words.remove_suffix(1);
    return words;
}

}  // namespace

nlohmann::ordered_json Conversation::messages() const {
    auto all = nlohmann::ordered_json::array();
    if (!system_.empty()) all.push_back({{"role", "system"}, {"content", system_}});
    for (const auto& turn : turns_) all.push_back(turn);
    return all;
}

void Conversation::add_question(std::string text) {
    turns_.push_back({{"role", "user"}, {"content", std::move(text)}});
}

void Conversation::add_answer(std::string text) {
    turns_.push_back({{"role", "assistant"}, {"content", std::move(text)}});
}

void Conversation::drop_question() {
    if (!turns_.empty() && turns_.back()["role"] == "user") turns_.erase(turns_.size() - 1);
}

Conversation::Line Conversation::take(std::string_view line, std::string_view model) {
    if (!line.starts_with('/')) return {};
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string_view command = line.substr(0, space), rest = trimmed(line.substr(space));

    if (command == "/quit" || command == "/exit") return {Kind::quit, "", false};
    if (command == "/help") return reply(std::string(chat_help));
    if (command == "/history") return reply(history());
    if (command == "/system") return set_system(rest);
    if (command == "/save") return save(rest, model);
    if (command == "/new") {
        turns_.clear();
        return reply("a new conversation\n");
    }
    return reply(text("there is no command ", command, "; /help lists them\n"), true);
}

Conversation::Line Conversation::set_system(std::string_view rest) {
    if (rest.empty())
        return reply(system_.empty() ? "there is no system message\n" : text(system_, "\n"));
    system_ = rest == "off" ? "" : std::string(rest);
    return reply(system_.empty() ? "the system message is removed\n"
                                 : "the system message is set\n");
}

Conversation::Line Conversation::save(std::string_view path, std::string_view model) const {
    if (path.empty()) return reply("/save wants the name of a new file\n", true);

    const nlohmann::ordered_json object{{"model", model}, {"messages", messages()}};
    const std::string content =
        object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    const std::string name(path);
    const auto failed = [&name] {
        return reply(text("/save ", name, ": ", std::strerror(errno), "\n"), true);
    };
    // An existing file is not replaced.
    const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return failed();
    std::string_view left = content;
    while (!left.empty()) {
        const ssize_t count = ::write(fd, left.data(), left.size());
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
            const Line line = failed();
            ::close(fd);
            ::unlink(name.c_str());
            return line;
        }
        left.remove_prefix(static_cast<std::size_t>(count));
    }
    if (::close(fd) != 0) return failed();
    return reply(text(name, ": saved ", messages().size(), " messages\n"));
}

std::string Conversation::history() const {
    std::string out;
    for (const auto& message : messages())
        out += text(message["role"].get<std::string>(), ": ", message["content"].get<std::string>(),
                    "\n");
    return out.empty() ? "the conversation is empty\n" : out;
}

}  // namespace moex
