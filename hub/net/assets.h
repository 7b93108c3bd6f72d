// The pages and scripts of the hub: a fixed table of names. The build embeds them in the binary, or
// the table lists the files that a folder held at start (--static DIR).
// A request names an entry or gets 404: no file path is ever built from bytes that a client sent.
// The build compresses embedded files; the files of a folder are sent uncompressed.
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
    std::shared_ptr<const void> keep;  // owner of `bytes` if they are not in the binary
    std::string etag;                  // ETag: the SHA-256, or "SHA256-br", in quotes
    std::string content_type;
    std::string_view coding;   // Content-Encoding: "br" or "gzip"; empty: uncompressed
    bool has_codings = false;  // true: the asset exists in several content codings
};

class Assets {
  public:
    // An empty folder name selects the pages that are embedded in the binary. The constructor
    // throws std::runtime_error if the folder has no index.html.
    explicit Assets(const std::filesystem::path& directory);
    // Returns true if the table has the URL path, e.g. "/js/chat.js"; "/" is index.html.
    bool contains(std::string_view path) const;
    // Returns the asset at a URL path in the best content coding that the Accept-Encoding field
    // accepts.
    std::optional<Asset> find(std::string_view path, std::string_view accept_encoding = "") const;
    // Returns one line for each asset, "PATH SHA256\n", sorted by path: the set of pages that the
    // hub signs.
    std::string lines() const;
    std::size_t size() const { return embedded_.size() + files_.size(); }

  private:
    void add_file(const std::filesystem::path& directory,
                  const std::filesystem::directory_entry& entry);

    // keyed by URL path: all content codings of an asset, the uncompressed form first
    std::map<std::string, std::vector<Asset>, std::less<>> embedded_;
    // keyed by URL path: files of --static, which are read for each request, so that an edited page
    // is served at once
    std::map<std::string, std::filesystem::path, std::less<>> files_;
};

std::string content_type_of(std::string_view path);

}  // namespace moex::net
