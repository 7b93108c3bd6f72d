// The schema document that a grammar is compiled from: its references, the merging of schemas, and
// the translation of keywords into the few that the compiler knows.
//
// The problem: JSON Schema has many keywords, several spellings of one thing in its drafts, and
// keywords that an automaton cannot hold. The compiler (json_schema.cpp) should know few of them.
//
// The way taken: plain() translates one level of a schema, and leaves the schemas inside it as they
// are. Example: {"oneOf": [{"type": "null"}, {"type": "integer"}]} becomes
// {"anyOf": [{"type": "null"}, {"type": "integer"}]}, because no value fits both branches.
// A keyword without a translation is refused by name, or, if the reading weakens, left out and
// listed as a Weakening. Then the grammar accepts more than the schema does.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/grammar/schema_reading.h"
#include "hub/model/json_fields.h"
#include "protocol/result.h"

namespace moex {

// Thrown inside the compiler, and caught at its border. `keyword` is the keyword that failed;
// empty: the failure has no keyword. A failure that `is_limit` concerns the whole document.
struct SchemaFailure {
    Error error;
    std::string keyword = {};
    bool is_limit = false;
};

class SchemaDocument {
  public:
    // `root` must outlive the document. `weakened` may be null.
    SchemaDocument(const OrderedJson& root, std::string_view name, SchemaReading reading,
                   std::vector<Weakening>* weakened)
        : root_(root),
          name_(name),
          reading_(reading),
          weakened_(weakened) {}

    const OrderedJson& root() const { return root_; }
    const std::string& name() const { return name_; }
    const SchemaReading& reading() const { return reading_; }

    [[noreturn]] void fail(const std::string& path, std::string_view keyword, std::string_view what,
                           ErrorCode code = ErrorCode::unsupported) const;
    [[noreturn]] void fail_limit(const std::string& path, std::string_view what) const;
    // Lists a keyword that the grammar does not hold, once for each place.
    void weaken(const std::string& path, std::string_view keyword);

    // Returns the place of the document that a `$ref` names: a JSON pointer (RFC 6901) after '#',
    // or the name of an `$anchor`.
    const OrderedJson& resolve(const OrderedJson& schema, const std::string& path) const;
    // Stores a schema that was made by a merge or a translation; its address stays valid.
    const OrderedJson& keep(OrderedJson schema);

    // Returns the schema in keywords that the compiler knows; nullopt: it has only such keywords.
    std::optional<OrderedJson> plain(const OrderedJson& schema, const std::string& path);
    // Returns the schema without `$ref` and `allOf` at its top level: both are merged into the
    // other keywords of the schema.
    OrderedJson flattened(const OrderedJson& schema, const std::string& path);
    // Returns a schema that accepts what both `a` and `b` accept. A nested schema that `a` and `b`
    // both have becomes an `allOf`, which is merged later, when the nested schema is compiled.
    OrderedJson merged(const OrderedJson& a, const OrderedJson& b, const std::string& path);

    // Returns true if a schema has a keyword other than `keyword` that restricts values.
    static bool has_meaning_beside(const OrderedJson& schema, std::string_view keyword);
    // Returns true if an object of this schema may have only the members that the schema names.
    bool is_closed(const OrderedJson& schema) const;

    // Returns what `schema` demands of a member with this name that it does not declare.
    OrderedJson schema_of_member(const OrderedJson& schema, const std::string& name,
                                 const std::string& path) const;
    // Returns what a schema demands of a declared member: its own schema `value`, and those of the
    // patterns that its name matches.
    OrderedJson with_patterns(const OrderedJson& schema, const std::string& name,
                              const OrderedJson& value, const std::string& path) const;

  private:
    class Translation;
    struct Deeper {  // counts one level of nested merges while it lives
        explicit Deeper(std::uint32_t& depth) : depth_(depth) { ++depth_; }
        ~Deeper() { --depth_; }
        Deeper(const Deeper&) = delete;
        std::uint32_t& depth_;
    };
    void merge_members(const OrderedJson& a, const OrderedJson& b, OrderedJson& out,
                       const std::string& path) const;
    void merge_keyword(const std::string& key, const OrderedJson& value, OrderedJson& out,
                       const std::string& path) const;
    OrderedJson patterns_of_member(const OrderedJson& schema, const std::string& name,
                                   const std::string& path, bool& is_matched) const;

    const OrderedJson& root_;
    const std::string name_;
    const SchemaReading reading_;
    std::vector<Weakening>* const weakened_;
    std::deque<OrderedJson> made_;  // a deque, since the compiler keeps addresses of these schemas
    std::uint32_t merges_ = 0, depth_ = 0;
    std::uint64_t made_values_ = 0;
};

}  // namespace moex
