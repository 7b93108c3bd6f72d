// ChatSource: where the answers of `moex-hub chat` come from. A package on this machine and a
// running hub are the two sources.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "hub/commands/command.h"

namespace moex {

struct ChatAnswer {
    std::uint32_t num_tokens = 0;
    double seconds = 0;       // time from the first token to the last
    bool is_stopped = false;  // true: stop() ended the answer
    bool is_cut = false;      // true: the answer reached the limit of tokens
};

class ChatSource {
  public:
    virtual ~ChatSource() = default;
    virtual std::string model_name() const = 0;
    // Answers the messages of a conversation, [{role, content}, ...]. Calls `on_text` on the
    // calling thread with each piece of the answer; it returns false to stop the answer.
    using OnText = std::function<bool(std::string_view)>;
    virtual Result<ChatAnswer> answer(const nlohmann::ordered_json& messages,
                                      const OnText& on_text) = 0;
    // Stops the running answer, if there is one. Any thread.
    virtual void stop() = 0;
};

// Loads a package for answers that this machine computes.
Result<std::unique_ptr<ChatSource>> open_local_chat(const Invocation& invocation);
// Connects to a running hub at `url`, "http://127.0.0.1:8080".
Result<std::unique_ptr<ChatSource>> open_hub_chat(const Invocation& invocation,
                                                  const std::string& url);

}  // namespace moex
