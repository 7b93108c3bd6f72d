// Validates a value against a schema: for values that a schema lists, for the arguments of a call
// whose grammar was weakened, and, as a slow second check of the grammar, for answers in tests.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "hub/api/grammar/byte_automaton.h"
#include "hub/model/json_fields.h"
#include "protocol/result.h"

namespace moex {

// A ResolveReference returns the target of a schema's $ref.
using ResolveReference = std::function<const OrderedJson&(const OrderedJson&)>;
// Returns an error if the value cannot be judged: a keyword is not supported (unevaluated* and
// dynamic references), or the steps exceed their bound.
Result<bool> schema_admits(const OrderedJson& schema, const OrderedJson& value,
                           const ResolveReference& resolve);

// A schema that judges values. Its patterns are compiled when it is made, so that a judgement takes
// few steps. Immutable.
class SchemaJudge {
  public:
    explicit SchemaJudge(OrderedJson schema);
    Result<bool> admits(const OrderedJson& value) const;

  private:
    void compile_patterns(const OrderedJson& at);

    OrderedJson schema_;
    std::map<std::string, SharedAutomaton> patterns_;
    std::uint64_t bytes_ = 0;
};

// Compares two values as JSON Schema does: 1 equals 1.0, and members have no order.
bool same_value(const OrderedJson& a, const OrderedJson& b);

// Writes a JSON value in the only spelling that answers use.
std::string json_text(const OrderedJson& value);

}  // namespace moex
