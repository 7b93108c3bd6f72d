// A row of the table of routes: the path, the clients that may use it, its handler, and its entry
// in /openapi.json. Also finds the row of a path. The rows are in route_table.cpp, the only file
// that knows the handlers. Deny by default: a path that is neither in the table nor an embedded
// page gets 404.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "hub/api/http.h"
#include "hub/registry/records.h"

namespace moex::net {

class Routes;
class WireResponder;

using Handler = void (Routes::*)(HttpRequest, std::shared_ptr<WireResponder>) const;

enum class Work { none, text };  // text: the route uses the model, and is rate limited

// The credential of a route. keyed: a key of role `role`, where keys are required. host: the admin
// key as Bearer, on loopback too, and only from the hub's own pages or from no page. claim: as
// `host`, but with the token of a one-time link. join: as `host`, but with the join token.
enum class Door { keyed, host, claim, join };

// A row of the route table, with the route's handler and its description for /openapi.json.
struct Route {
    const char* method;
    const char* path;  // a path that ends in '*' matches all longer paths with this beginning
    Handler handler;
    std::optional<Role> role;  // role of the required key, except on loopback; nullopt: no key
    Work work = Work::none;
    // text for /openapi.json, which omits a route without a summary
    const char* summary = nullptr;
    const char* answer = nullptr;  // schemas of hub/api/openapi.cpp
    const char* request = nullptr;
    const char* rest = nullptr;  // the name of the part that '*' matches
    Door door = Door::keyed;
    Dialect dialect = Dialect::openai;
    std::uint64_t body_bytes_max = 0;  // 0: as for every route (GateLimits)

    constexpr Route says(const char* words, const char* answer_schema = nullptr,
                         const char* request_schema = nullptr) const {
        Route row = *this;
        row.summary = words;
        row.answer = answer_schema;
        row.request = request_schema;
        return row;
    }
    constexpr Route speaks(Dialect words) const {
        Route row = *this;
        row.dialect = words;
        return row;
    }
    constexpr Route takes_bytes(std::uint64_t bytes_max) const {
        Route row = *this;
        row.body_bytes_max = bytes_max;
        return row;
    }
    constexpr Route with_rest(const char* name) const {
        Route row = *this;
        row.rest = name;
        return row;
    }
};

inline constexpr const char* worker_path = "/worker";
inline constexpr const char* test_path = "/api/test";  // only with test_routes

// Returns the row of a path; pages have no row. An exact path is preferred to a prefix, and a row
// for the method `method` to rows for other methods.
const Route* find_route(std::string_view path, std::string_view method = {});
// Returns Route::body_bytes_max of a path; 0: none.
std::uint64_t body_bytes_max_of(std::string_view path, std::string_view method);
const Route* page_route();
// Returns the part of `path` that the '*' of `pattern` matches; empty if `pattern` has no '*'.
std::string_view rest_of(std::string_view path, std::string_view pattern);
Refusal no_such_route(std::string_view path);
std::string allowed_methods(const Route& route);
// Returns the route table as the JSON of /openapi.json, which is the same for every hub of this
// version.
std::string describe_routes();

}  // namespace moex::net
