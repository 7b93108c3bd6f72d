// The members of one JSON object, read under checks of type and range. The first problem is kept,
// so that a caller reads everything and asks once. A member that is absent or null leaves its
// target as it was, unless it is required.
//
// There are two kinds of JSON here, by what the order of members means:
//   Json         sorted: what files and frames bring. A lookup costs O(log n), whoever wrote it.
//   OrderedJson  as written: what people read, and what a chat template sees, whose text follows
//                the order. A lookup costs O(n): parse it with a low JsonLimits::keys_max.
//
// protocol/json.h reads frames, stricter and for the tab too: there null is a wrong value, and
// texts hold no control characters.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/json.h"
#include "protocol/text.h"

namespace moex {

using OrderedJson = nlohmann::ordered_json;

// A member, or null where it is missing or `object` is none.
template <class AnyJson>
const AnyJson& member(const AnyJson& object, std::string_view name) {
    static const AnyJson null;
    const AnyJson* const found = find_member(object, name);
    return found == nullptr ? null : *found;
}

// A whole number that fits. 3.0 counts: JavaScript and Lua write integers that way at times.
template <class AnyJson>
std::optional<std::int64_t> whole_number(const AnyJson& value) {
    constexpr auto value_max = std::numeric_limits<std::int64_t>::max();
    if (value.is_number_unsigned()) {
        const auto number = value.template get<std::uint64_t>();
        if (number > static_cast<std::uint64_t>(value_max)) return std::nullopt;
        return static_cast<std::int64_t>(number);
    }

    if (value.is_number_integer()) return value.template get<std::int64_t>();

    if (!value.is_number_float()) return std::nullopt;
    const auto number = value.template get<double>();
    if (!(std::abs(number) < 9e15) || number != std::floor(number)) return std::nullopt;
    return static_cast<std::int64_t>(number);
}

// `Wording` says what is wrong in the words of a room, and what a problem is there:
//   struct Wording {
//       using Problem = Error;
//       Problem wrong(std::string_view name, std::string_view wanted, const AnyJson* found) const;
//   };
// `found` is null where the member is absent.
template <class AnyJson, class Wording>
class JsonFields {
  public:
    using Problem = typename Wording::Problem;

    // `object` outlives the reader. Anything but an object reads as an empty one.
    explicit JsonFields(const AnyJson& object, Wording wording = {})
        : object_(object),
          wording_(std::move(wording)) {}

    // nullptr when absent or null.
    const AnyJson* find(std::string_view name) const {
        const AnyJson* const member = find_member(object_, name);
        return member == nullptr || member->is_null() ? nullptr : member;
    }

    void real(std::string_view name, double min, double max, double& out) {
        const AnyJson* const value = find(name);
        if (value == nullptr) return;

        const double number = value->is_number() ? value->template get<double>() : std::nan("");
        if (!(number >= min && number <= max))
            return wrong(name, text("a number from ", min, " to ", max), value);
        out = number;
    }

    void positive(std::string_view name, double& out) {
        const AnyJson* const value = find(name);
        if (value == nullptr) return;

        const double number = value->is_number() ? value->template get<double>() : 0;
        if (!(number > 0 && std::isfinite(number))) return wrong(name, "a positive number", value);
        out = number;
    }

    template <class Integer>
    void whole(std::string_view name, std::int64_t min, std::int64_t max, Integer& out,
               Presence presence = Presence::optional) {
        const AnyJson* const value = find(name);
        if (value == nullptr && presence == Presence::optional) return;

        const auto number = value == nullptr ? std::nullopt : whole_number(*value);
        if (!number || *number < min || *number > max) {
            const bool any = min == std::numeric_limits<std::int64_t>::min() &&
                             max == std::numeric_limits<std::int64_t>::max();
            const std::string range = any ? std::string() : text(" from ", min, " to ", max);
            return wrong(name, text("a whole number", range), find_member(object_, name));
        }

        out = static_cast<Integer>(*number);
    }

    void boolean(std::string_view name, bool& out) {
        const AnyJson* const value = find(name);
        if (value == nullptr) return;

        if (!value->is_boolean()) return wrong(name, "true or false", value);
        out = value->template get<bool>();
    }

    void string(std::string_view name, std::string& out) {
        const AnyJson* const value = find(name);
        if (value == nullptr) return;

        if (!value->is_string()) return wrong(name, "a string", value);
        out = value->template get<std::string>();
    }

    // A member that must be an object; nullptr, and a problem, when it is not.
    const AnyJson* object(std::string_view name) {
        const AnyJson* const value = find_member(object_, name);
        if (value != nullptr && value->is_object()) return value;

        wrong(name, "an object", value);
        return nullptr;
    }

    void wrong(std::string_view name, std::string_view wanted, const AnyJson* found) {
        if (!problem_) problem_ = wording_.wrong(name, wanted, found);
    }
    void wrong(std::string_view name, std::string_view wanted, const AnyJson& found) {
        wrong(name, wanted, &found);
    }
    void refuse(Problem problem) {
        if (!problem_) problem_ = std::move(problem);
    }
    const std::optional<Problem>& problem() const { return problem_; }

  protected:
    const Wording& wording() const { return wording_; }

  private:
    const AnyJson& object_;
    Wording wording_;
    std::optional<Problem> problem_;
};

}  // namespace moex
