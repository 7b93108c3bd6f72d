#include "hub/registry/hub_id.h"

#include <algorithm>
#include <fstream>

#include "hub/registry/random_name.h"
#include "hub/registry/state_files.h"
#include "protocol/text.h"

namespace moex {

Result<std::string> hub_id_of(const std::filesystem::path& directory) {
    constexpr std::size_t digits = 8;
    const std::filesystem::path file = directory / "hub_id";
    std::error_code failure;
    if (!std::filesystem::exists(file, failure)) {
        MOEX_ASSIGN(fresh, random_name(digits));
        MOEX_TRY(secure_file(file));
        std::ofstream out(file);
        out << fresh << '\n';
        if (!out.flush())
            return Error{ErrorCode::io_error, text(file.string(), ": cannot be written")};
        return fresh;
    }
    std::ifstream in(file);
    std::string id;
    std::getline(in, id);
    const bool is_right = id.size() == digits && std::ranges::all_of(id, [](char c) {
                              return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                          });
    if (!is_right)
        return Error{ErrorCode::bad_file,
                     text(file.string(), ": wanted ", digits,
                          " hexadecimal digits, the name of this hub; delete it for a new one")};
    return id;
}

}  // namespace moex
