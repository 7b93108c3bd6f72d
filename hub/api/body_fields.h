// Reads the members of a request's body and checks their types and values. The first problem is
// kept as a refusal that names its field.
#pragma once

#include "hub/api/refusal.h"
#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"

namespace moex {

// Makes the refusal that says which field has a wrong value.
struct BodyWording {
    using Problem = Refusal;
    Problem wrong(std::string_view param, std::string_view wanted, const OrderedJson* found) const {
        return {400,
                text("Invalid value for '", param, "': wanted ", wanted, ", found ",
                     json_excerpt(found ? *found : OrderedJson()), "."),
                "invalid_value", std::string(param)};
    }
};

// Reads the members of a request's JSON body.
class BodyFields : public JsonFields<OrderedJson, BodyWording> {
  public:
    using JsonFields::JsonFields;
    using JsonFields::refuse;

    void unsupported(std::string_view param, std::string_view why) {
        refuse(text("'", param, "' is not supported by this server: ", why),
               "unsupported_parameter", param);
    }
    void refuse(std::string message, std::string_view code, std::string_view param) {
        refuse(Refusal{400, std::move(message), std::string(code), std::string(param)});
    }
};

}  // namespace moex
