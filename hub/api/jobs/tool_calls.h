// The syntax in which a model writes tool calls, its grammar, and the splitter that separates calls
// from words.
// The syntax is derived from the text of the chat template: Qwen's and Hermes' <tool_call> blocks,
// Mistral's [TOOL_CALLS] list, Llama 3's single object, or GPT-OSS' channels (channels.h). A
// template that names no such syntax gets <tool_call> blocks, too.
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
    bool is_known = true;  // true: the template names the syntax; false: the syntax is the default
    // An answer is `opens`, then for each call `before_name` NAME `before_arguments` ARGUMENTS
    // `behind`, with `between` before each further call, and `closes` at the end. Example (Hermes):
    //   <tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>
    std::string opens, before_name, before_arguments, behind, between, closes;
    bool is_single = false;     // an answer has at most one call
    bool has_channels = false;  // the answers are in channels; channels.h reads and writes them
    std::optional<TokenId> opens_token = {};  // the token of `opens`, if `opens` is a single token
};
CallSyntax call_syntax(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

// Rewrites messages for a template without tools: describes the tools in a system message, and
// writes calls and results as text.
void write_out_tools(OrderedJson& messages, const OrderedJson& tools, const CallSyntax& syntax);

// Adds the grammar of answers that call tools as `choice` demands, without thoughts. `said` is the
// node of an answer without a call; nullopt: an answer without a call may be any text.
Result<NodeId> add_tool_answer(std::vector<GrammarNode>& nodes, const ToolChoice& choice,
                               const CallSyntax& syntax, std::optional<NodeId> said);

// A piece of tool call number `index` of an answer in a stream.
struct CallPiece {
    std::uint32_t index = 0;
    std::string name;       // name of the tool call if it begins with this piece; else empty
    std::string arguments;  // the next part of the call's arguments
};
struct CalledText {
    std::string content;
    std::vector<CallPiece> calls;
};

// Splits an answer into plain text and tool calls, piece by piece. The parts do not depend on how
// the text is cut into pieces.
class CallSplitter {
  public:
    // `calls_at_once`: the answer has only calls and no words.
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
    std::uint32_t depth_ = 0;  // number of open braces and brackets in the arguments so far
    bool in_string_ = false, is_escaped_ = false;
};

std::string new_call_id();  // Returns nine random characters, as Mistral's template requires.

}  // namespace moex
