// Derives the syntax of tool calls from what a chat template writes for calls of earlier turns.
//
// Several chats are rendered: one call, two calls, calls with other arguments. Where the known
// names and values stand in the text, and what repeats between two calls, gives the fixed texts of
// the syntax. Example, for the function f with the argument a = "v":
//   <calls><call name="f">{"a": "v"}</call></calls>           one call
//   <calls><call name="f">{..}</call><call name="f">{..}</call></calls>    two calls
// give opens `<calls>`, before_name `<call name="`, before_arguments `">`, behind `</call>` and
// closes `</calls>`. The derived syntax counts only if it writes the same texts as the template for
// all the chats, nested values and texts with quotes and line ends among them.
// Limits: arguments that are neither one JSON object nor parameters with the text itself (such as
// Python's f(a='v')), and syntaxes that write no names, are not derived.
// Source: llama.cpp's chat-auto-parser, which compares renderings in this way, too.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/grammar/grammar.h"
#include "hub/api/jobs/call_syntax.h"
#include "hub/api/jobs/reasoning.h"
#include "hub/model/json_fields.h"
#include "protocol/text.h"

namespace moex {
namespace {

struct ProbedCall {
    std::string name;
    OrderedJson arguments;
};
using Calls = std::vector<ProbedCall>;

const std::string first_name = "probed_first", second_name = "probed_second";
const std::string first_key = "key_one", second_key = "key_two";
const std::string first_value = "value one", second_value = "value two";

// Returns JSON as the filter tojson of chat templates writes it.
std::string written_json(const OrderedJson& value) {
    std::string out;
    if (value.is_object()) {
        for (const auto& [name, inside] : value.items())
            out += text(out.empty() ? "" : json_comma, json_string(name), json_colon,
                        written_json(inside));
        return "{" + out + "}";
    }
    if (value.is_array()) {
        for (const OrderedJson& inside : value)
            out += text(out.empty() ? "" : json_comma, written_json(inside));
        return "[" + out + "]";
    }
    return value.is_string() ? json_string(value.get<std::string>()) : value.dump();
}

// Renders a chat and returns the text of its last turn, which begins where an answer would begin;
// nullopt: the template refuses the chat.
class Prober {
  public:
    explicit Prober(const ChatTemplate& chat_template) : template_(chat_template) {
        const auto begin = render(OrderedJson::array({question()}), true);
        if (begin) begin_ = *begin;
        if (const auto said = turn_of({{"role", "assistant"}, {"content", "probed words"}})) {
            const std::size_t words = said->find("probed words");
            if (words != std::string::npos) end_ = said->substr(words + 12);
        }
    }

    // Returns what the assistant writes for these calls, without the end of the turn.
    std::optional<std::string> written(const Calls& calls) const {
        OrderedJson list = OrderedJson::array();
        for (std::size_t i = 0; i < calls.size(); ++i)
            list.push_back(
                {{"id", text("callprob", i)},
                 {"type", "function"},
                 {"function", {{"name", calls[i].name}, {"arguments", calls[i].arguments}}}});
        auto turn = turn_of(
            {{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(list)}});
        if (!turn) return std::nullopt;
        // Leave the thoughts out, which some templates write empty.
        if (const std::size_t thoughts = turn->rfind(think_close); thoughts != std::string::npos)
            turn->erase(0, thoughts + think_close.size());
        const std::size_t first = turn->find_first_not_of(" \t\r\n");
        turn->erase(0, std::min(first, turn->size()));
        const bool is_mark = end_.find_first_not_of(" \t\r\n") != std::string::npos;
        const std::size_t end = is_mark ? turn->find(end_) : turn->rfind(end_);
        if (end == std::string::npos) return std::nullopt;
        turn->resize(end);
        return turn;
    }

  private:
    static OrderedJson question() { return {{"role", "user"}, {"content", "question"}}; }

    std::optional<std::string> render(const OrderedJson& messages, bool opens_turn) const {
        const OrderedJson tool{
            {"type", "function"},
            {"function",
             {{"name", "another_function"},
              {"description", "a function"},
              {"parameters", {{"type", "object"}, {"properties", OrderedJson::object()}}}}}};
        OrderedJson context;
        context["messages"] = messages;
        context["tools"] = OrderedJson::array({tool});
        context["add_generation_prompt"] = opens_turn;
        auto rendered = template_.render(context);
        if (!rendered.ok()) return std::nullopt;
        return *std::move(rendered);
    }

    // Returns the text of the assistant's last message behind the begin of its turn.
    std::optional<std::string> turn_of(const OrderedJson& message) const {
        const auto rendered = render(OrderedJson::array({question(), message}), false);
        if (!rendered) return std::nullopt;
        const auto differs = std::mismatch(rendered->begin(), rendered->end(), begin_.begin(),
                                           begin_.end());
        auto begin = static_cast<std::size_t>(differs.first - rendered->begin());
        // Both texts may begin with the same characters of different tags: <think>, <tool_call>.
        const std::size_t tag = begin == 0 ? std::string::npos : rendered->rfind('<', begin - 1);
        if (tag != std::string::npos && rendered->find('>', tag) >= begin) begin = tag;
        return rendered->substr(begin);
    }

    const ChatTemplate& template_;
    std::string begin_, end_;
};

std::size_t common_begin(std::string_view a, std::string_view b) {
    const std::size_t most = std::min(a.size(), b.size());
    std::size_t size = 0;
    while (size < most && a[size] == b[size]) ++size;
    return size;
}

std::size_t common_end(std::string_view a, std::string_view b) {
    const std::size_t most = std::min(a.size(), b.size());
    std::size_t size = 0;
    while (size < most && a[a.size() - 1 - size] == b[b.size() - 1 - size]) ++size;
    return size;
}

// Returns the size of the common end of two texts, from the begin of a tag or line on, so that no
// tag is cut in two: `<calls><call>` and `</call><call>` have `<call>` in common, without the '>'.
std::size_t common_tags(std::string_view a, std::string_view b) {
    const std::size_t size = common_end(a, b);
    const std::size_t cut = a.substr(a.size() - size).find_first_of("<[{\n");
    return cut == std::string_view::npos ? size : size - cut;
}

// Returns the texts between the given parts, which follow each other in `whole`, and the texts
// before the first and behind the last part; empty: a part is missing.
std::vector<std::string> texts_between(std::string_view whole,
                                       const std::vector<std::string>& parts) {
    std::vector<std::string> out;
    std::size_t at = 0;
    for (const std::string& part : parts) {
        const std::size_t found = whole.find(part, at);
        if (found == std::string_view::npos) return {};
        out.emplace_back(whole.substr(at, found - at));
        at = found + part.size();
    }
    out.emplace_back(whole.substr(at));
    return out;
}

// Finds how arguments are written: as one JSON object, or as parameters. Sets the texts around
// them; `head` and `tail` get what stands before the name and behind the arguments.
bool read_arguments(std::string_view written, const ProbedCall& call, CallSyntax& out,
                    std::string& head, std::string& tail) {
    const auto json = texts_between(written, {call.name, written_json(call.arguments)});
    if (!json.empty()) {
        head = json[0];
        out.before_arguments = json[1];
        tail = json[2];
        return true;
    }
    const auto parts = texts_between(written,
                                     {call.name, first_key, first_value, second_key, second_value});
    if (parts.empty() || parts[2] != parts[4] || parts[2].empty()) return false;
    // `before_arguments` and `before_key` follow the name; between two parameters
    // `after_value` and `before_key`.
    const std::size_t key = common_tags(parts[1], parts[3]);
    if (key == 0 || key == parts[3].size()) return false;
    head = parts[0];
    out.before_arguments = parts[1].substr(0, parts[1].size() - key);
    out.before_key = parts[1].substr(out.before_arguments.size());
    out.before_value = parts[2];
    out.after_value = parts[3].substr(0, parts[3].size() - key);
    if (!parts[5].starts_with(out.after_value)) return false;
    tail = parts[5].substr(out.after_value.size());
    return true;
}

// Splits the texts around calls: `head` is the text before the first call's name, `middle` between
// the arguments of a call and the name of the next one, `tail` behind the last arguments.
bool split_around(const std::string& head, const std::string& middle, const std::string& tail,
                  CallSyntax& out) {
    const std::size_t name = common_tags(head, middle);
    if (name < head.size()) {
        out.opens = head.substr(0, head.size() - name);
        out.before_name = head.substr(out.opens.size());
    } else {
        // Each call has the whole opening. It ends with the first line or tag.
        const std::size_t end = head.find_first_of(">]\n", 1);
        const std::size_t size = end == std::string::npos ? head.size() : end + 1;
        out.opens = head.substr(0, size);
        out.before_name = head.substr(size);
    }
    const std::string rest = middle.substr(0, middle.size() - out.before_name.size());
    out.behind = tail.substr(0, common_begin(tail, rest));
    out.between = rest.substr(out.behind.size());
    out.closes = tail.substr(out.behind.size());
    return !out.opens.empty();
}

std::string written_arguments(const CallSyntax& syntax, const OrderedJson& arguments) {
    if (!syntax.has_parameters()) return written_json(arguments);
    std::string out;
    for (const auto& [key, value] : arguments.items())
        out += text(syntax.before_key, key, syntax.before_value,
                    value.is_string() ? value.get<std::string>() : written_json(value),
                    syntax.after_value);
    return out;
}

std::string written_calls(const CallSyntax& syntax, const Calls& calls) {
    std::string out = syntax.opens;
    for (std::size_t i = 0; i < calls.size(); ++i)
        out += text(i > 0 ? syntax.between : "", syntax.before_name, calls[i].name,
                    syntax.before_arguments, written_arguments(syntax, calls[i].arguments),
                    syntax.behind);
    return out + syntax.closes;
}

// Returns true if the reader of answers (CallSplitter) can take calls of this syntax apart.
bool is_readable(const CallSyntax& syntax) {
    if (syntax.before_arguments.empty() && !syntax.has_parameters()) return false;
    const bool has_next = syntax.is_single || !syntax.before_name.empty() ||
                          syntax.between.ends_with(syntax.opens);
    // The reader must see the end of the parameters.
    return has_next && (!syntax.has_parameters() || !syntax.behind.empty());
}

}  // namespace

std::optional<CallSyntax> derived_syntax(const ChatTemplate& chat_template) {
    const Prober prober(chat_template);
    const OrderedJson two{{first_key, first_value}, {second_key, second_value}};
    const ProbedCall first{first_name, two}, second{second_name, two};

    const auto one_call = prober.written({first});
    CallSyntax syntax{.name = "template", .opens = {}, .before_arguments = {}};
    std::string head, tail;
    if (!one_call || !read_arguments(*one_call, first, syntax, head, tail)) return std::nullopt;

    const auto two_calls = prober.written({first, second});
    const std::string arguments = written_arguments(syntax, two);
    const auto parts = two_calls ? texts_between(*two_calls, {first_name, arguments, second_name})
                                 : std::vector<std::string>();
    if (parts.empty() || parts[0] != head) {
        syntax.is_single = true;
        syntax.opens = head;
        syntax.behind = tail;
    } else if (!split_around(head, parts[2], tail, syntax)) {
        return std::nullopt;
    }
    if (syntax.opens.empty() || !is_readable(syntax)) return std::nullopt;

    // Compare what the syntax and the template write for other calls.
    const OrderedJson odd{{"text", "a \"quote\",\nlines and \xe6\x97\xa5"},
                          {"count", 7},
                          {"deep", {{"list", {true, nullptr}}}}};
    const std::vector<Calls> others{{first}, {{first_name, odd}}, {first, {second_name, odd}}};
    for (const Calls& calls : others) {
        if (calls.size() > 1 && syntax.is_single) continue;
        const auto written = prober.written(calls);
        if (!written || *written != written_calls(syntax, calls)) return std::nullopt;
    }
    return syntax;
}

}  // namespace moex
