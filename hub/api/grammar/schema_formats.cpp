#include "hub/api/grammar/schema_formats.h"

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/text.h"

namespace moex {
namespace {

std::string date_pattern() {
    // Match February 29 of leap years: 4 divides the year, and if 100 divides the year, 400 does,
    // too.
    const std::string by_four = "(?:0[48]|[2468][048]|[13579][26])";
    const std::string leap = "(?:\\d\\d" + by_four + "|(?:00|" + by_four + ")00)";
    return "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])"
           "|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|" +
           leap + "-02-29)";
}

const std::string time_pattern =
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)";

const std::string escaped = "%[0-9A-Fa-f]{2}", mild = "A-Za-z0-9._~!$&'()*+,;=";
const std::string uri_part = "(?:[" + mild + ":@-]|" + escaped + ")";

// Returns the query and the fragment of a URI.
std::string uri_end() {
    const std::string rest = "(?:[" + mild + ":@/?-]|" + escaped + ")*";
    return "(?:\\?" + rest + ")?(?:#" + rest + ")?";
}

// Returns the pattern of a URI with its scheme (RFC 3986, 3), without literal IPv6 addresses. The
// path behind a scheme alone is not empty, since common validators refuse "name:?".
std::string uri_pattern() {
    const std::string host = "(?:[" + mild + "-]|" + escaped + ")*";
    const std::string authority = "//(?:(?:[" + mild + ":-]|" + escaped + ")*@)?" + host +
                                  "(?::[0-9]{1,4})?(?:/" + uri_part + "*)*";
    const std::string path = "(?:/|/?" + uri_part + "+(?:/" + uri_part + "*)*)";
    return "[A-Za-z][A-Za-z0-9+.-]*:(?:" + authority + "|" + path + ")" + uri_end();
}

// Returns the pattern of a URI, or of a path without a colon in its first segment.
std::string uri_reference_pattern() {
    const std::string path = "/?(?:(?:[" + mild + "@-]|" + escaped + ")+(?:/" + uri_part + "*)*)?";
    return "(?:" + uri_pattern() + "|" + path + uri_end() + ")";
}

// Returns the pattern of a URI with variables in braces (RFC 6570).
std::string uri_template_pattern() {
    const std::string variable = "[A-Za-z0-9_]+(?::[1-9][0-9]{0,3}|\\*)?";
    return "(?:[A-Za-z0-9._~!$&()*+,;=:@/?#-]|" + escaped + "|\\{[+#./;?&]?" + variable + "(?:," +
           variable + ")*\\})*";
}

// Returns the pattern of an IPv6 address in hexadecimal groups (RFC 4291, 2.2).
std::string ipv6_pattern() {
    const std::string group = "[0-9a-fA-F]{1,4}";
    std::string out = "(?:(?:" + group + ":){7}" + group + "|(?:" + group + ":){1,7}:";
    for (int before = 1; before <= 6; ++before)
        out += text("|(?:", group, ":){", before, "}(?::", group, "){1,", 7 - before, "}");
    return out + "|:(?::" + group + "){1,7}|::)";
}

// Returns the pattern of a duration of ISO 8601.
std::string duration_pattern() {
    const std::string days = "(?:\\d+Y(?:\\d+M)?(?:\\d+D)?|\\d+M(?:\\d+D)?|\\d+D)";
    const std::string time = "T(?:\\d+H(?:\\d+M)?(?:\\d+S)?|\\d+M(?:\\d+S)?|\\d+S)";
    return "P(?:" + days + "(?:" + time + ")?|" + time + "|\\d+W)";
}

const std::map<std::string, std::string>& format_patterns() {
    static const std::string byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
    static const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
    static const std::string word = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
    static const std::map<std::string, std::string> patterns{
        {"date", "^" + date_pattern() + "$"},
        {"time", "^" + time_pattern + "$"},
        {"date-time", "^" + date_pattern() + "T" + time_pattern + "$"},
        {"uuid", "^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
        {"email", "^" + word + "(?:\\." + word + ")*@(?:" + label + "\\.)+" + label + "$"},
        {"ipv4", "^" + byte + "(?:\\." + byte + "){3}$"},
        // 61 characters and three labels of 63 are the 253 that a name may have.
        {"hostname", "^[A-Za-z0-9](?:[A-Za-z0-9-]{0,59}[A-Za-z0-9])?(?:\\." + label + "){0,3}$"},
        {"ipv6", "^" + ipv6_pattern() + "$"},
        {"uri", "^" + uri_pattern() + "$"},
        {"uri-reference", "^" + uri_reference_pattern() + "$"},
        {"uri-template", "^" + uri_template_pattern() + "$"},
        {"duration", "^" + duration_pattern() + "$"},
        {"json-pointer", "^(?:/(?:[^~/]|~[01])*)*$"},
        {"relative-json-pointer", "^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)$"}};
    return patterns;
}

}  // namespace

namespace {

// A look-ahead at the beginning of a pattern, e.g. (?!-) of ^(?!-)[a-z-]+$.
struct LookAhead {
    std::string pattern;
    bool is_negative = false;
};

// Takes a look-ahead that begins at `at` of a pattern; nullopt: there is none.
std::optional<LookAhead> take_look_ahead(std::string_view pattern, std::size_t& at) {
    const std::string_view rest = pattern.substr(at);
    if (!rest.starts_with("(?!") && !rest.starts_with("(?=")) return std::nullopt;
    std::uint32_t depth = 0;
    bool in_class = false;
    for (std::size_t i = 0; i < rest.size(); ++i) {
        const char c = rest[i];
        if (c == '\\') {
            ++i;
        } else if (in_class) {
            in_class = c != ']';
        } else if (c == '[') {
            in_class = true;
        } else if (c == '(') {
            ++depth;
        } else if (c == ')' && --depth == 0) {
            at += i + 1;
            return LookAhead{text("^(?:", rest.substr(3, i - 3), ")"), rest[2] == '!'};
        }
    }
    return std::nullopt;
}

}  // namespace

// A pattern may begin with look-aheads, since all of them apply to the whole text: the text has to
// fit those, too. A look-ahead at any other place is refused by parse_pattern().
Result<SharedAutomaton> automaton_of_pattern(const std::string& pattern) {
    std::vector<LookAhead> ahead;
    std::size_t at = pattern.starts_with('^') ? 1 : pattern.size();
    while (auto one = take_look_ahead(pattern, at)) ahead.push_back(*std::move(one));
    MOEX_ASSIGN(expression, parse_pattern(ahead.empty() ? pattern : '^' + pattern.substr(at)));
    // A look-ahead concerns one alternative only: parse_pattern() refuses it.
    if (!ahead.empty() && expression.kind == Expression::Kind::choice) {
        MOEX_ASSIGN(whole, parse_pattern(pattern));
        return automaton_of_search(whole);
    }
    MOEX_ASSIGN(texts, automaton_of_search(expression));
    for (const LookAhead& one : ahead) {
        MOEX_ASSIGN(inside, parse_pattern(one.pattern));
        MOEX_ASSIGN(begins, automaton_of_search(inside));
        MOEX_ASSIGN(left,
                    one.is_negative ? difference(*texts, *begins) : intersection(*texts, *begins));
        texts = left;
    }
    return texts;
}

// Each automaton is built once, when a schema first needs it.
Result<SharedAutomaton> automaton_of_format(const std::string& format) {
    static std::mutex mutex;
    static std::map<std::string, SharedAutomaton> made;
    const auto pattern = format_patterns().find(format);
    if (pattern == format_patterns().end()) return SharedAutomaton();
    const std::lock_guard lock(mutex);
    SharedAutomaton& automaton = made[format];
    if (!automaton) {
        MOEX_ASSIGN(fresh, automaton_of_pattern(pattern->second));
        automaton = fresh;
    }
    return automaton;
}

Result<SharedAutomaton> string_texts(const OrderedJson& schema) {
    SharedAutomaton all = any_text();
    const auto narrow = [&](Result<SharedAutomaton> one) -> Status {
        if (!one.ok()) return one.error();
        if (!*one) return {};
        if (all == any_text()) {
            all = *one;
            return {};
        }
        MOEX_ASSIGN(common, intersection(*all, **one));
        all = common;
        return {};
    };

    for (const char* key : {"pattern", "format"}) {
        OrderedJson list = OrderedJson::array();
        if (schema.contains(key)) list.push_back(schema[key]);
        if (const auto more = schema.find(std::string(key) + "s of allOf"); more != schema.end())
            for (const OrderedJson& one : *more) list.push_back(one);
        for (const OrderedJson& one : list) {
            if (!one.is_string())
                return Error{ErrorCode::invalid_argument, text("'", key, "' is no string")};
            const std::string words = one.get<std::string>();
            MOEX_TRY(
                narrow(*key == 'p' ? automaton_of_pattern(words) : automaton_of_format(words)));
        }
    }
    return all;
}

}  // namespace moex
