// Decides whether at most one branch of a `oneOf` fits, for every text that the grammar writes.
//
// The problem: `oneOf` wants exactly one branch to fit, and an automaton of one branch cannot ask
// what the others would say. The solution: `oneOf` becomes `anyOf` where no text of a branch is
// valid under another branch. Two branches exclude each other by their types, by constants, or by a
// member that one requires and the other does not have. Where a branch may have a member that
// another branch requires, the branch is narrowed: it gets the member no more. Example:
//   {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": ..., "b": ...}}
// becomes one branch with "a" and without "b", and one with "b" and without "a".
// Limits: what this reasoning cannot separate counts as not exclusive. The steps are bounded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hub/api/grammar/schema_document.h"

namespace moex {

class SchemaBranches {
  public:
    SchemaBranches(SchemaDocument& document, const std::string& path)
        : document_(document),
          path_(path) {}

    // Narrows `branches` until no text of one branch is valid under another; returns false if that
    // is not possible. The branches have neither `$ref` nor `allOf` at their top level.
    bool make_exclusive(std::vector<OrderedJson>& branches);

  private:
    bool rejects(const OrderedJson& text_of, const OrderedJson& schema);
    bool branches_reject(const OrderedJson& text_of, const OrderedJson& schema);
    bool values_reject(const OrderedJson& text_of, const OrderedJson& schema);
    bool objects_reject(const OrderedJson& text_of, const OrderedJson& schema);
    bool arrays_reject(const OrderedJson& text_of, const OrderedJson& schema);
    bool strings_reject(const OrderedJson& text_of, const OrderedJson& schema) const;
    bool type_rejects(const std::string& type, const OrderedJson& text_of,
                      const OrderedJson& schema);
    bool narrow(OrderedJson& branch, const OrderedJson& other);

    SchemaDocument& document_;
    const std::string& path_;
    std::uint32_t steps_ = 0, depth_ = 0;
};

}  // namespace moex
