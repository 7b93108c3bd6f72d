#include "hub/model/jinja/text_format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex::jinja {
namespace {

constexpr std::size_t width_max = 10'000, precision_max = 300;

// One conversion of a format string, in the form %(key)-+ 0#width.precision kind.
struct PercentSpec {
    std::optional<std::string> key;
    bool left = false, plus = false, blank = false, zero = false, alternate = false;
    std::size_t width = 0;
    std::optional<std::size_t> precision;
    char kind = '\0';
};

class PercentFormatter {
  public:
    PercentFormatter(Renderer& renderer, const MarkedText& format, const Value& value)
        : renderer_(renderer),
          format_(format),
          bytes_(format.bytes()),
          value_(value) {
        if (value.list() && value.list()->tuple)
            values_ = value.list()->items;
        else
            values_.push_back(value);
    }

    MarkedText run() {
        std::size_t copied = 0;
        while ((at_ = bytes_.find('%', copied)) != std::string::npos) {
            out_.append(format_, copied, at_++);
            const PercentSpec spec = read_spec();
            if (spec.kind == '%')
                out_.append("%", false);
            else
                convert(spec);
            copied = at_;
        }

        out_.append(format_, copied, bytes_.size());

        if (next_ < values_.size() && !value_.dict()) fail("too many values for a format string");
        return std::move(out_);
    }

  private:
    char peek() const { return at_ < bytes_.size() ? bytes_[at_] : '\0'; }

    std::size_t read_number(std::size_t max) {
        std::size_t number = 0;
        if (peek() == '*') {
            ++at_;
            const std::int64_t given = integer_argument(next_value(), "* in a format");
            if (given < 0) fail("a negative width in a format");
            number = static_cast<std::size_t>(given);
        }

        while (peek() >= '0' && peek() <= '9' && number <= max)
            number = number * 10 + static_cast<std::size_t>(bytes_[at_++] - '0');
        if (number > max) fail(text("a width or precision over ", max, " in a format"));
        return number;
    }

    PercentSpec read_spec() {
        PercentSpec spec;
        if (peek() == '(') {
            const std::size_t close = bytes_.find(')', at_);
            if (close == std::string::npos) fail("a format's key is not closed");
            spec.key = bytes_.substr(at_ + 1, close - at_ - 1);
            at_ = close + 1;
        }

        for (;; ++at_) {
            if (peek() == '-')
                spec.left = true;
            else if (peek() == '+')
                spec.plus = true;
            else if (peek() == ' ')
                spec.blank = true;
            else if (peek() == '0')
                spec.zero = true;
            else if (peek() == '#')
                spec.alternate = true;
            else
                break;
        }

        spec.width = read_number(width_max);
        if (peek() == '.') {
            ++at_;
            spec.precision = read_number(precision_max);
        }

        if (at_ >= bytes_.size()) fail("a format string ends inside a conversion");
        spec.kind = bytes_[at_++];
        return spec;
    }

    const Value& next_value() {
        if (next_ >= values_.size()) fail("not enough values for a format string");
        return values_[next_++];
    }
    Value value_of(const PercentSpec& spec) {
        if (!spec.key) return next_value();
        if (!value_.dict()) fail("a format with keys wants a mapping");
        const Value* const found = value_.dict()->find(*spec.key);
        if (!found) fail(text("the mapping has no '", *spec.key, "' for the format string"));
        return *found;
    }

    void convert(const PercentSpec& spec) {
        const Value value = value_of(spec);
        renderer_.charge_bytes(spec.width);
        switch (spec.kind) {
            case 's': return put_text(print(value), spec);
            case 'r': {
                MarkedText shown;
                print_repr(shown, value);
                return put_text(shown, spec);
            }
            case 'c': return put_character(value, spec);
            case 'd':
            case 'i':
            case 'u':
            case 'x':
            case 'X':
            case 'o': return put_integer(value, spec);
            case 'e':
            case 'E':
            case 'f':
            case 'F':
            case 'g':
            case 'G': return put_float(value, spec);
            default: fail(text("the format %", std::string(1, spec.kind), " is not supported"));
        }
    }

    void put_character(const Value& value, const PercentSpec& spec) {
        if (value.text()) {
            if (utf8_count(value.text()->bytes()) != 1) fail("%c wants one character");
            return put_text(*value.text(), spec);
        }

        const std::int64_t code = integer_argument(value, "%c");
        if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
            fail("%c wants a character");
        std::string character;
        utf8_append(character, static_cast<char32_t>(code));
        put_text(MarkedText(character), spec);
    }

    void put_text(const MarkedText& shown, const PercentSpec& spec) {
        const std::vector<std::size_t> starts = code_point_starts(shown.bytes());
        const std::size_t length = std::min(starts.size() - 1,
                                            spec.precision.value_or(starts.size() - 1));

        const std::string padding(spec.width > length ? spec.width - length : 0, ' ');
        if (!spec.left) out_.append(padding, false);
        out_.append(shown, 0, starts[length]);
        if (spec.left) out_.append(padding, false);
    }

    void put_integer(const Value& value, const PercentSpec& spec) {
        if (!value.is_number()) fail(text("%", std::string(1, spec.kind), " wants a number"));
        const bool decimal = spec.kind == 'd' || spec.kind == 'i' || spec.kind == 'u';
        if (!decimal && value.is_float()) fail("%x and %o want an integer");
        if (value.is_float() && !(std::fabs(value.number()) < 9.2e18))
            fail("%d wants a number of 64 bits");
        const std::int64_t number = value.is_float() ? static_cast<std::int64_t>(value.number())
                                                     : value.integer();

        const auto magnitude = number < 0 ? 0 - static_cast<std::uint64_t>(number)
                                          : static_cast<std::uint64_t>(number);
        char digits[32];
        const char* const pattern = spec.kind == 'x' ? "%lx" : spec.kind == 'X' ? "%lX" : "%lo";
        if (decimal)
            std::snprintf(digits, sizeof digits, "%lu", static_cast<unsigned long>(magnitude));
        else
            std::snprintf(digits, sizeof digits, pattern, static_cast<unsigned long>(magnitude));

        std::string shown = digits;
        if (const std::size_t wanted = spec.precision.value_or(0); shown.size() < wanted)
            shown.insert(0, wanted - shown.size(), '0');
        const std::string prefix = !spec.alternate || decimal ? std::string()
                                                              : std::string{'0', spec.kind};
        put_number(number < 0, prefix, shown, spec);
    }

    void put_float(const Value& value, const PercentSpec& spec) {
        if (!value.is_number()) fail(text("%", std::string(1, spec.kind), " wants a number"));
        const double number = value.number();
        const std::string pattern = text(spec.alternate ? "%#.*" : "%.*", spec.kind);

        // the number as text: at most 309 digits, a point and precision_max digits
        char shown[700];
        const int precision = static_cast<int>(spec.precision.value_or(6));
        std::snprintf(shown, sizeof shown, pattern.c_str(), precision, std::fabs(number));
        put_number(std::signbit(number) && !std::isnan(number), {}, shown, spec);
    }

    void put_number(bool negative, const std::string& prefix, const std::string& digits,
                    const PercentSpec& spec) {
        const std::string front = (negative     ? "-"
                                   : spec.plus  ? "+"
                                   : spec.blank ? " "
                                                : "") +
                                  prefix;
        const std::size_t size = front.size() + digits.size();

        const std::size_t missing = spec.width > size ? spec.width - size : 0;
        if (spec.left)
            out_.append(front + digits + std::string(missing, ' '), false);
        else if (spec.zero)
            out_.append(front + std::string(missing, '0') + digits, false);
        else
            out_.append(std::string(missing, ' ') + front + digits, false);
    }

    Renderer& renderer_;
    const MarkedText& format_;
    const std::string& bytes_;
    const Value& value_;
    std::vector<Value> values_;
    std::size_t at_ = 0, next_ = 0;
    MarkedText out_;
};

// Returns the argument that a replacement field {field} names. `next` counts the fields without a
// name.
const Value& field_value(const std::string& field, const CallArguments& arguments,
                         std::size_t& next) {
    if (field.find_first_of(":!.[") != std::string::npos)
        fail(text("format(): the field {", field, "} is not supported"));

    const bool numbered = !field.empty() && field.size() < 5 &&
                          field.find_first_not_of("0123456789") == std::string::npos;
    const std::size_t position = field.empty() ? next++
                                 : numbered    ? std::stoul(field)
                                               : arguments.positional.size();
    const Value* const value = arguments.find(position, field);
    if (!value) fail(text("format(): no value for {", field, "}"));

    return *value;
}

}  // namespace

MarkedText format_percent(Renderer& renderer, const MarkedText& format, const Value& value) {
    return PercentFormatter(renderer, format, value).run();
}

MarkedText format_braces(const MarkedText& format, const CallArguments& arguments) {
    MarkedText out;
    const std::string& bytes = format.bytes();
    std::size_t copied = 0, next = 0;
    for (std::size_t at = 0; at < bytes.size();) {
        const char c = bytes[at];
        if (c != '{' && c != '}') {
            ++at;
            continue;
        }

        out.append(format, copied, at);
        if (at + 1 < bytes.size() && bytes[at + 1] == c) {
            out.append(std::string(1, c), false);
            at += 2;
        } else {
            const std::size_t close = bytes.find('}', at);
            if (c == '}' || close == std::string::npos)
                fail("format(): a brace without its partner");
            const std::string field = bytes.substr(at + 1, close - at - 1);
            out.append(print(field_value(field, arguments, next)));
            at = close + 1;
        }

        copied = at;
    }

    out.append(format, copied, bytes.size());
    return out;
}

}  // namespace moex::jinja
