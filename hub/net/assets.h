// The pages and scripts: a fixed table of names, embedded in the binary
// at build time, or the files that a folder held at start (--static DIR).
// A request names an entry or gets 404: no path is ever built from what a client sent.
// What is embedded was compressed by the build; a folder's files go as they are.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/bytes.h"

namespace moex::net {

struct Asset {
    ByteView bytes;
    std::shared_ptr<const void> keep;  // owner of `bytes` when they are not in the binary
    std::string etag;                  // "sha256" or "sha256-br", quoted
    std::string content_type;
    std::string_view coding;   // Content-Encoding: "br" or "gzip"; empty: as it is
    bool has_codings = false;  // whether another request might get another form of it
};

class Assets {
  public:
    // An empty folder name means the embedded table. Throws
    // std::runtime_error when the folder has no index.html.
    explicit Assets(const std::filesystem::path& directory);
    // By URL path, e.g. "/js/chat.js"; "/" is index.html.
    bool contains(std::string_view path) const;
    // In the form that suits an Accept-Encoding field.
    std::optional<Asset> find(std::string_view path, std::string_view accept_encoding = "") const;
    std::size_t size() const { return embedded_.size() + files_.size(); }

  private:
    void add_file(const std::filesystem::path& directory,
                  const std::filesystem::directory_entry& entry);

    // one form of content each, as it is first
    std::map<std::string, std::vector<Asset>, std::less<>> embedded_;
    // read anew for each request: for those who edit pages
    std::map<std::string, std::filesystem::path, std::less<>> files_;
};

std::string content_type_of(std::string_view path);

}  // namespace moex::net
