// JsonFields reads the members of a JSON object and checks their types and ranges. The reader keeps
// the first problem, so that a caller reads all members and then checks for a problem once. A
// member that is absent or null leaves its target unchanged, unless it is required.
//
// There are two kinds of JSON. They differ in the order of members:
//   Json         sorted by name: for files and frames. A lookup costs O(log n) for any input.
//   OrderedJson  as written: for JSON that people read, and for chat templates, whose output
//                follows the order. A lookup costs O(n): parse it with a low JsonLimits::keys_max.
//
// Frames are read by protocol/json.h, which is stricter and also builds for the tab. There, null is
// a wrong value and strings hold no control characters.
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

// Returns the member of `object` with this name, or a JSON null if the member is missing or
// `object` is not an object.
template <class AnyJson>
const AnyJson& member(const AnyJson& object, std::string_view name) {
    static const AnyJson null;
    const AnyJson* const found = find_member(object, name);
    return found == nullptr ? null : *found;
}

// Returns `value` as an integer if it is a whole number within the range of the integer type. 3.0
// is accepted, because JavaScript and Lua sometimes write integers in this form.
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

// `Wording` defines the type of a problem and the text of its message, which differ between rooms:
//   struct Wording {
//       using Problem = Error;
//       Problem wrong(std::string_view name, std::string_view wanted, const AnyJson* found) const;
//   };
// `found` is nullptr if the member is absent.
template <class AnyJson, class Wording>
class JsonFields {
  public:
    using Problem = typename Wording::Problem;

    // `object` must outlive the reader. If `object` is not a JSON object, it is read as an empty
    // object.
    explicit JsonFields(const AnyJson& object, Wording wording = {})
        : object_(object),
          wording_(std::move(wording)) {}

    // Returns the member with this name, or nullptr when the member is absent or null.
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

    // Returns a member that must be an object. If the member is not an object, the function returns
    // nullptr and records a problem.
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
