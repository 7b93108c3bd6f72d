// Judges finished values by a whole schema, e.g. the arguments of a call with a weakened grammar.
#pragma once

#include <map>
#include <string>

#include "hub/api/grammar/byte_automaton.h"
#include "hub/model/json_fields.h"
#include "protocol/result.h"

namespace moex {

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

}  // namespace moex
