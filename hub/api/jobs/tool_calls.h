// How a model writes tool calls, and how they are told apart from what it says.
// The syntax follows from the chat template's own words: Qwen's and Hermes' <tool_call> blocks,
// Mistral's [TOOL_CALLS] list, Llama 3's one object, GPT-OSS' channels (channels.h). A template
// that names none of these gets <tool_call> blocks, too.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/grammar/grammar.h"
#include "hub/api/openai_request.h"
#include "hub/model/chat_template.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

struct CallSyntax {
    const char* name = "";
    bool is_known = true;  // the template names it; false: the default
    // opens ⟨before name⟩ NAME ⟨before arguments⟩ ARGUMENTS ⟨behind⟩, then, for a further call,
    // ⟨between⟩, and `closes` at the end.
    std::string opens, before_name, before_arguments, behind, between, closes;
    bool is_single = false;                   // never more than one call
    bool has_channels = false;                // channels.h reads and writes its answers
    std::optional<TokenId> opens_token = {};  // where `opens` is a token of its own
};
CallSyntax call_syntax(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// For a template without tools: their description as a system message, calls and results as text.
void write_out_tools(OrderedJson& messages, const OrderedJson& tools, const CallSyntax& syntax);

// Answers that call tools as `choice` says; thoughts are not part of it. `said`: what an answer
// without a call is; none: any text.
Result<NodeId> add_tool_answer(std::vector<GrammarNode>& nodes, const ToolChoice& choice,
                               const CallSyntax& syntax, std::optional<NodeId> said);

struct CallPiece {
    std::uint32_t index = 0;
    std::string name;       // of a call that begins; else empty
    std::string arguments;  // what is known of them now
};
struct CalledText {
    std::string content;
    std::vector<CallPiece> calls;
};

// Takes an answer apart as it comes. The same parts come out wherever the text was cut.
class CallSplitter {
  public:
    // `calls_at_once`: the answer is nothing but calls.
    CallSplitter(CallSyntax syntax, bool calls_at_once);
    CalledText push(std::string_view piece);
    CalledText finish();
    std::uint32_t num_calls() const { return num_calls_; }

  private:
    enum class Part { content, before_name, name, before_arguments, arguments };
    bool step(CalledText& out);
    bool skip_past(std::string_view words);

    CallSyntax syntax_;
    Part part_;
    std::string held_;
    std::uint32_t num_calls_ = 0;
    std::uint32_t depth_ = 0;  // of braces and brackets in the arguments
    bool in_string_ = false, is_escaped_ = false;
};

std::string new_call_id();  // nine characters, as Mistral's template asks

}  // namespace moex
