// A row of the table of routes: what is served, to whom, and what /openapi.json says of it; and how
// a row is found. The rows are in route_table.cpp, which alone knows the handlers that they name.
// Deny by default: what is not in the table, or among the embedded pages, is 404.
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

enum class Work { none, text };  // text: wants the model, and counts against the rates

// Who opens a route. keyed: `role`, where keys are asked for. host: the admin key as Bearer,
// everywhere, from our own pages or from none. claim: the same with the token of a one-time link.
// join: the same with the join token.
enum class Door { keyed, host, claim, join };

// A row of the table: what it takes, who answers, and what /openapi.json says of it.
struct Route {
    const char* method;
    const char* path;  // one ending in '*' is a prefix, with something behind it
    Handler handler;
    std::optional<Role> role;  // of the key that it takes off loopback; none: open
    Work work = Work::none;
    // For /openapi.json; a route without a summary is left out there.
    const char* summary = nullptr;
    const char* answer = nullptr;  // schemas of hub/api/openapi.cpp
    const char* request = nullptr;
    const char* rest = nullptr;  // the name of what '*' stands for
    Door door = Door::keyed;
    Dialect dialect = Dialect::openai;

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
    constexpr Route with_rest(const char* name) const {
        Route row = *this;
        row.rest = name;
        return row;
    }
};

inline constexpr const char* worker_path = "/worker";
inline constexpr const char* test_path = "/api/test";  // only with test_routes

// The row of a path, the pages aside: an exact one before a prefix, one of that method before
// others.
const Route* find_route(std::string_view path, std::string_view method = {});
const Route* page_route();
// What the '*' of `pattern` stands for in `path`; nothing where it has none.
std::string_view rest_of(std::string_view path, std::string_view pattern);
Refusal no_such_route(std::string_view path);
std::string allowed_methods(const Route& route);
// The table as /openapi.json shows it; the same for every hub of this version.
std::string describe_routes();

}  // namespace moex::net
