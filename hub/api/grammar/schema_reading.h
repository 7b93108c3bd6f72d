// How a schema is read, and the keywords that a weakening reading leaves out.
#pragma once

#include <string>

namespace moex {

struct SchemaReading {
    // A keyword that the grammar does not hold is left out instead of refused.
    bool weakens = false;
    // A schema that declares `properties` and says nothing of further members allows none. By the
    // standard it allows any.
    bool closes_objects = true;
    // `if` and `not` may become branches (schema_negation.h), which make a grammar larger.
    bool branches = true;
};

// A keyword of a schema that its grammar does not hold.
struct Weakening {
    std::string path;  // from the root of the schema, e.g. "properties.url"; empty: the root
    std::string keyword;
    bool operator==(const Weakening&) const = default;
};

}  // namespace moex
