#include "hub/model/strict_json.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <vector>

namespace moex {
namespace {

// Builds the JSON value from the parser's events and stops when the first limit is exceeded. The
// library's own parse() with a callback would be slower: it searches all earlier members of an
// object or list whenever a value inside ends.
template <class Json>
class StrictBuilder {
  public:
    StrictBuilder(std::string_view json_text, std::string_view what, const JsonLimits& limits)
        : json_text_(json_text),
          what_(what),
          limits_(limits) {}

    bool null() { return add(nullptr) != nullptr; }
    bool boolean(bool value) { return add(value) != nullptr; }
    bool number_integer(typename Json::number_integer_t value) { return add(value) != nullptr; }
    bool number_unsigned(typename Json::number_unsigned_t value) { return add(value) != nullptr; }
    bool number_float(typename Json::number_float_t value, const std::string&) {
        return add(value) != nullptr;
    }
    bool string(std::string& value) { return add(std::move(value)) != nullptr; }
    bool binary(typename Json::binary_t&) { return refuse("not JSON"); }
    bool start_object(std::size_t) {
        if constexpr (is_ordered) names_.emplace_back();
        return open(Json::object());
    }
    bool end_object() {
        if constexpr (is_ordered) names_.pop_back();
        return close();
    }
    bool start_array(std::size_t) { return open(Json::array()); }
    bool end_array() { return close(); }
    bool key(std::string& name) {
        auto& members = open_.back()->template get_ref<typename Json::object_t&>();
        if (members.size() >= limits_.keys_max)
            return refuse(text("more than ", limits_.keys_max, " keys in one object"));

        bool fresh = true;
        if constexpr (is_ordered) {
            fresh = names_.back().insert(name).second;
            if (fresh)
                slot_ = &static_cast<typename Json::object_t::Container&>(members)
                             .emplace_back(name, nullptr)
                             .second;
        } else {
            const auto [member, inserted] = members.emplace(name, nullptr);
            fresh = inserted;
            slot_ = &member->second;
        }

        return fresh || refuse(text("\"", name.substr(0, 200), "\" occurs twice in one object"));
    }
    bool parse_error(std::size_t num_read, const std::string&,
                     const nlohmann::detail::exception& error) {
        constexpr int number_out_of_range = 406;  // number of this error in the JSON library
        if (error.id == number_out_of_range)
            return refuse(text("a number too large, at ", place_of(num_read)));
        if (json_text_.find_first_not_of(" \t\r\n") == std::string_view::npos)
            return refuse("is empty, wanted JSON");
        if (num_read > json_text_.size())
            return refuse("not JSON: it ends inside a value; truncated?");
        return refuse(text("not JSON, at ", place_of(num_read)));
    }

    Result<Json> take() {
        MOEX_TRY(status_);
        return std::move(root_);
    }

  private:
    static constexpr bool is_ordered = std::is_same_v<Json, nlohmann::ordered_json>;

    Json* add(Json value) {
        if (++num_values_ > limits_.values_max) {
            refuse(text("more than ", limits_.values_max, " JSON values"));
            return nullptr;
        }
        if (open_.empty()) return &(root_ = std::move(value));
        if (open_.back()->is_object()) return &(*slot_ = std::move(value));
        auto& list = open_.back()->template get_ref<typename Json::array_t&>();
        return &list.emplace_back(std::move(value));
    }
    bool open(Json empty) {
        if (open_.size() >= limits_.depth_max)
            return refuse(text("JSON nested deeper than ", limits_.depth_max, " levels"));
        Json* const added = add(std::move(empty));
        if (added != nullptr) open_.push_back(added);
        return added != nullptr;
    }
    bool close() {
        open_.pop_back();
        return true;
    }
    // Returns the line and the column of the byte that was read last, after `num_read` bytes.
    std::string place_of(std::size_t num_read) const {
        const std::string_view before = json_text_.substr(0, num_read > 0 ? num_read - 1 : 0);
        const auto line = 1 + std::count(before.begin(), before.end(), '\n');
        const auto line_begin = before.rfind('\n') + 1;  // if no '\n' is found, npos + 1 is 0
        return text("line ", line, ", column ", before.size() - line_begin + 1);
    }
    bool refuse(const std::string& why) {
        status_ = Error{ErrorCode::bad_json, text(what_, ": ", why)};
        return false;
    }

    std::string_view json_text_, what_;
    const JsonLimits& limits_;
    Json root_;
    // path from the root to the value that is being parsed; only the last value of the path grows,
    // so the pointers stay valid
    std::vector<Json*> open_;
    Json* slot_ = nullptr;  // where to store the value of the key that was read last
    // names in each open object; used only if a lookup in Json would be a linear search
    std::vector<std::set<std::string>> names_;
    std::uint64_t num_values_ = 0;
    Status status_;
};

template <class Json>
std::string excerpt(const Json& value) {
    std::string shown = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
    return shown;
}

}  // namespace

template <class Json>
Result<Json> parse_strict_json(std::string_view json_text, std::string_view what,
                               const JsonLimits& limits) {
    StrictBuilder<Json> builder(json_text, what, limits);
    Json::sax_parse(json_text, &builder);
    return builder.take();
}
template Result<nlohmann::json> parse_strict_json(std::string_view, std::string_view,
                                                  const JsonLimits&);
template Result<nlohmann::ordered_json> parse_strict_json(std::string_view, std::string_view,
                                                          const JsonLimits&);

std::string json_excerpt(const nlohmann::json& value) { return excerpt(value); }
std::string json_excerpt(const nlohmann::ordered_json& value) { return excerpt(value); }

}  // namespace moex
