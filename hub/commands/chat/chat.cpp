// moex-hub chat: a conversation in the terminal, with a package on this machine or a running hub.
// Answers are printed to stdout, everything else to stderr.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>

#include "hub/base/log.h"
#include "hub/commands/chat/chat_source.h"
#include "hub/commands/chat/conversation.h"
#include "hub/commands/chat/terminal_text.h"
#include "hub/commands/load_model.h"
#include "hub/commands/output.h"
#include "hub/commands/signals.h"

namespace moex {
namespace {

constexpr const char* prompt = "> ";

// Handles Ctrl-C. During an answer the first one stops the answer; at the prompt the first one
// names the ways to end. The second one without a line of input between them ends the process, and
// SIGTERM always does.
class ChatInterruption {
  public:
    ChatInterruption()
        : signals_([this](int, int number) {
              const std::lock_guard lock(mutex_);
              if (number != SIGINT || ++count_ > 1) std::_Exit(exit_signal + number);
              if (answering_ != nullptr)
                  answering_->stop();
              else
                  std::fprintf(stderr, "\nCtrl-C again, Ctrl-D or /quit ends the chat\n%s", prompt);
          }) {}

    void answer_begins(ChatSource& source) {
        const std::lock_guard lock(mutex_);
        answering_ = &source;
        count_ = 0;
    }
    void answer_ends() {
        const std::lock_guard lock(mutex_);
        answering_ = nullptr;
    }
    void line_read() {
        const std::lock_guard lock(mutex_);
        count_ = 0;
    }

  private:
    std::mutex mutex_;
    ChatSource* answering_ = nullptr;
    int count_ = 0;          // signals since the last line of input
    SignalWatcher signals_;  // the last member, because its thread uses the members above
};

// Reads a message of one or more lines from stdin. Returns false at its end.
bool read_message(std::string& message, bool is_terminal) {
    message.clear();
    std::string line;
    do {
        if (is_terminal) std::fputs(message.empty() ? prompt : "| ", stderr);
        if (!std::getline(std::cin, line)) return false;
        if (line.ends_with('\r')) line.pop_back();
        const bool goes_on = line.ends_with('\\');
        if (goes_on) line.back() = '\n';
        message += line;
        if (!goes_on) return true;
    } while (true);
}

// Asks for one answer and prints it. Returns false if it failed.
bool answer(ChatSource& source, Conversation& conversation, ChatInterruption& interruption,
            bool is_terminal) {
    std::string whole;
    TerminalText shown;
    interruption.answer_begins(source);
    const auto result = source.answer(conversation.messages(), [&](std::string_view piece) {
        whole += piece;
        return print_now(is_terminal ? shown.push(piece) : std::string(piece));
    });
    interruption.answer_ends();
    (void)print_now("\n");

    if (!result.ok()) {
        fail(result.error().message);
        conversation.drop_question();
        return false;
    }
    if (whole.empty())
        conversation.drop_question();
    else
        conversation.add_answer(std::move(whole));

    const double rate = result->seconds > 0 ? (result->num_tokens - 1) / result->seconds : 0;
    if (is_terminal)
        std::fprintf(stderr, "(%u tokens, %.1f a second%s)\n", result->num_tokens, rate,
                     result->is_stopped ? ", stopped"
                     : result->is_cut   ? ", cut at the limit"
                                        : "");
    return true;
}

int converse(ChatSource& source, const Invocation& invocation, ChatInterruption& interruption) {
    const bool is_terminal = isatty(STDIN_FILENO) == 1;
    const bool shows_escapes = isatty(STDOUT_FILENO) != 1;
    Conversation conversation;
    if (const std::string* const system = invocation.argument("--system"))
        (void)conversation.take(text("/system ", *system), source.model_name());
    if (is_terminal)
        std::fprintf(stderr, "%s; /help lists the commands, Ctrl-D ends\n",
                     one_line(source.model_name()).c_str());

    bool is_good = true;
    std::string message;
    while (read_message(message, is_terminal)) {
        interruption.line_read();
        if (message.find_first_not_of(" \t\n") == std::string::npos) continue;

        const Conversation::Line line = conversation.take(message, source.model_name());
        if (line.kind == Conversation::Kind::quit) return exit_stopped;
        if (line.kind == Conversation::Kind::command) {
            const std::string out = TerminalText().push(line.reply);
            std::fputs(out.c_str(), stderr);
            is_good = !line.is_error;
            continue;
        }
        conversation.add_question(message);
        is_good = answer(source, conversation, interruption, !shows_escapes);
    }
    if (is_terminal) std::fputc('\n', stderr);
    // A script that writes to stdin learns from the exit code whether its last line worked.
    return is_good || is_terminal ? exit_stopped : exit_failed;
}

}  // namespace

int run_chat(const Invocation& invocation) {
    const std::string* const url = invocation.argument("--url");
    if (url != nullptr && invocation.settings.given("model")) {
        fail("chat wants either --model DIR or --url URL");
        return exit_wrong_arguments;
    }
    if (url == nullptr)
        for (const char* name : {"--key-file", "--ca", "--insecure-http"})
            if (invocation.argument(name)) {
                fail(text(name, " is for --url"));
                return exit_wrong_arguments;
            }

    set_log_of(invocation.settings);
    if (!invocation.settings.given("log-level")) set_log(LogLevel::warn);
    // made before any other thread, because threads inherit blocked signals
    ChatInterruption interruption;
    auto source = url != nullptr ? open_hub_chat(invocation, *url) : open_local_chat(invocation);
    if (!source.ok()) return fail(source.error().message);
    if (invocation.check_only) return exit_stopped;
    return converse(**source, invocation, interruption);
}

}  // namespace moex
