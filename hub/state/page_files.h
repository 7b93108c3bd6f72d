// The files of pages on disk: their names, and how they are found, written, read and deleted. All
// paths are relative to the folder of the pages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "hub/state/page_cipher.h"
#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

inline constexpr const char* key_check_name = "key-check";
inline constexpr const char* no_key_id = "local";  // key id of clients without an API key

std::string hex_of(const PageName& name);
// Returns "CLIENT/NAME.PARENT".
std::string page_file(const std::string& client_folder, const PageName& name,
                      const PageName& parent);

// The name of the file with the page's rows of layers with a window.
std::string window_file(const std::string& page_file);

struct FoundPage {
    std::string folder;  // name of the client's folder
    PageName name{}, parent{};
    std::uint64_t bytes = 0, window_bytes = 0;  // of both parts, and of the second one
    std::int64_t written_s = 0, used_ns = 0;
};

// Makes a folder (0700) if it does not exist, and checks that this process may write to it.
Status make_private_folder(const std::filesystem::path& folder);
// Returns the first line of the file "key-check"; empty if there is none.
std::string read_key_check(const std::filesystem::path& folder);
// Lists all pages. A second part without its page is deleted. Temporary files of a killed process
// are deleted; other names are left alone.
std::vector<FoundPage> find_pages(const std::filesystem::path& folder);
// Writes a file (0600) under a temporary name, then renames it. Creates the client's folder.
Status write_page_file(const std::filesystem::path& folder, const std::string& file,
                       ByteView bytes);
// Reads a whole file, and notes the time of its use. Error bad_file: it has more than `bytes_max`.
Result<Bytes> read_page_file(const std::filesystem::path& folder, const std::string& file,
                             std::uint64_t bytes_max);
// Deletes all pages, whether or not a hub uses them now. Returns their number.
Result<std::uint64_t> forget_pages(const std::filesystem::path& folder);
// Deletes a file, and the client's folder if it is empty then.
void delete_page_file(const std::filesystem::path& folder, const std::string& file);

}  // namespace moex
