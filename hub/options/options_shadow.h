// What `serve --prefetch shadow:...` asks for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/result.h"

namespace moex {

// shadow:NAME[,KEY=NUMBER]...
struct ShadowWish {
    std::string name;                // as hub/commands/open_shadow.h reads it
    std::uint32_t token_period = 1;  // token=: the model's token every so many tokens; 0: never
    std::uint32_t kv_period = 1;     // kv=: its keys and values every so many; 0: never
    std::uint32_t fetch = 0;         // fetch=: experts named a row and layer; 0: as the model asks
    bool draws_ahead = true;         // ahead=: 1, or 0 to begin each token with the model's
};
Result<ShadowWish> parse_shadow_wish(std::string_view prefetch);
bool wishes_shadow(std::string_view prefetch);  // whether it begins like one

}  // namespace moex
