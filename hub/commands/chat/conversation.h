// Conversation: the messages of a chat in the terminal, and the commands that change them.
//   /system TEXT   /history   /new   /save FILE   /help   /quit
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "protocol/result.h"

namespace moex {

inline constexpr std::string_view chat_help =
    "/system TEXT  set the system message; without TEXT: print it; /system off removes it\n"
    "/history      print the conversation\n"
    "/new          begin another conversation; the system message stays\n"
    "/save FILE    write the conversation to a new file, as JSON\n"
    "/help         print this list\n"
    "/quit         end (also Ctrl-D)\n"
    "A line that ends with \\ goes on in the next line. Ctrl-C stops an answer.\n";

class Conversation {
  public:
    // Returns [{role, content}, ...], the system message first.
    nlohmann::ordered_json messages() const;
    void add_question(std::string text);
    void add_answer(std::string text);
    // Removes the last question, which got no answer.
    void drop_question();

    // The kinds of lines that a user may type.
    enum class Kind { message, command, quit };
    struct Line {
        Kind kind = Kind::message;
        std::string reply;  // for a command: the text to print
        bool is_error = false;
    };
    // Runs `line` if it is a command. `model` is saved with the messages.
    Line take(std::string_view line, std::string_view model);

  private:
    Line set_system(std::string_view rest);
    Line save(std::string_view path, std::string_view model) const;
    std::string history() const;

    std::string system_;
    nlohmann::ordered_json turns_ = nlohmann::ordered_json::array();
};

}  // namespace moex
