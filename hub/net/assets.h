// The pages and scripts: a fixed table of names, embedded in the binary
// at build time, or the files that a folder held at start (--static DIR).
// A request names an entry or gets 404: no path is ever built from what a client sent.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/bytes.h"

namespace moex::net {

struct Asset {
    ByteView bytes;
    std::shared_ptr<const void> keep;  // owner of `bytes` when they are not in the binary
    std::string etag;                  // "sha256", quoted
    std::string content_type;
};

class Assets {
  public:
    // An empty folder name means the embedded table. Throws
    // std::runtime_error when the folder has no index.html.
    explicit Assets(std::filesystem::path directory);
    // By URL path, e.g. "/js/chat.js"; "/" is index.html.
    bool contains(std::string_view path) const;
    std::optional<Asset> find(std::string_view path) const;
    std::size_t size() const { return embedded_.size() + files_.size(); }

  private:
    void add_file(const std::filesystem::path& directory,
                  const std::filesystem::directory_entry& entry);

    std::map<std::string, Asset, std::less<>> embedded_;
    // read anew for each request: for those who edit pages
    std::map<std::string, std::filesystem::path, std::less<>> files_;
};

std::string content_type_of(std::string_view path);

}  // namespace moex::net
