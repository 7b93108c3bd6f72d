// The grammar of tool calls, and the splitter that separates calls from words. call_syntax.h knows
// the syntaxes, call_parameters.h the arguments that are no JSON object.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/grammar/grammar.h"
#include "hub/api/grammar/schema_judge.h"
#include "hub/api/jobs/call_syntax.h"
#include "hub/api/openai_request.h"

namespace moex {

// Rewrites messages for a template without tools: describes the tools in a system message, and
// writes calls and results as text.
void write_out_tools(OrderedJson& messages, const OrderedJson& tools, const CallSyntax& syntax);

// The tools with a grammar that accepts more than their schema does.
struct WeakenedTools {
    bool takes_any = false;      // arguments of tools that are not strict may be any object
    bool closes_objects = true;  // SchemaReading::closes_objects
    OrderedJson list = OrderedJson::array();  // [{"tool", "path", "keyword"}], as replies name them
    // [name], the whole schema of a weakened tool, which judges its finished arguments.
    std::map<std::string, std::shared_ptr<const SchemaJudge>> judges = {};
};
// Adds the grammar of a tool's arguments. A tool that is not strict is never refused: what the
// grammar does not hold is added to `weakened`.
Result<NodeId> add_arguments(std::vector<GrammarNode>& nodes, const Tool& tool,
                             const CallSyntax& syntax, WeakenedTools& weakened);

// Adds the grammar of answers that call tools as `choice` demands, without thoughts. `said` is the
// node of an answer without a call; nullopt: an answer without a call may be any text.
Result<NodeId> add_tool_answer(std::vector<GrammarNode>& nodes, const ToolChoice& choice,
                               const CallSyntax& syntax, std::optional<NodeId> said,
                               WeakenedTools& weakened);

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
    // `calls_at_once`: the answer has only calls and no words. `tools` says which parameters are
    // texts.
    CallSplitter(CallSyntax syntax, bool calls_at_once, std::vector<Tool> tools = {});
    CalledText push(std::string_view piece);
    CalledText finish();
    std::uint32_t num_calls() const { return num_calls_; }

  private:
    enum class Part { content, before_name, name, arguments };
    bool step(CalledText& out);
    bool step_json(CalledText& out);
    bool step_parameters(CalledText& out);
    bool skip_past(std::string_view words);

    CallSyntax syntax_;
    std::vector<Tool> tools_;
    std::string name_;                  // name of the call being read
    std::uint32_t num_parameters_ = 0;  // of the call being read
    Part part_;
    std::string held_;
    std::uint32_t num_calls_ = 0;
    std::uint32_t depth_ = 0;  // number of open braces and brackets in the arguments so far
    bool in_string_ = false, is_escaped_ = false;
};

std::string new_call_id();  // Returns nine random characters, as Mistral's template requires.

}  // namespace moex
