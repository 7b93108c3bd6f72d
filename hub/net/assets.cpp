#include "hub/net/assets.h"

#include <fstream>
#include <set>
#include <stdexcept>

#include "hub/base/sha256.h"
#include "hub/model/package/package.h"
#include "hub/net/http/content_coding.h"
#include "protocol/text.h"

// embed_assets.cmake makes this table: one row per file, and a null name at the end.
extern "C" {
struct MoexAssetForm {
    const std::byte* data;
    std::uint64_t size;
};
struct MoexAssetRow {
    const char* path;
    const char* sha256;
    MoexAssetForm plain, brotli, gzip;  // null: this coding makes the file no smaller
};
extern const MoexAssetRow moex_asset_table[];
}

namespace moex::net {
namespace fs = std::filesystem;

namespace {

// The coding that compresses better comes first.
constexpr std::string_view codings[] = {"br", "gzip"};

std::vector<Asset> forms_of(const MoexAssetRow& row) {
    std::vector<Asset> forms;
    const auto add = [&](const MoexAssetForm& form, std::string_view coding) {
        if (!form.data) return;
        const std::string tag = coding.empty() ? std::string() : text('-', coding);
        forms.push_back({.bytes = {form.data, static_cast<std::size_t>(form.size)},
                         .keep = nullptr,
                         .etag = text('"', row.sha256, tag, '"'),
                         .content_type = content_type_of(row.path),
                         .coding = coding});
    };
    add(row.plain, "");
    add(row.brotli, "br");
    add(row.gzip, "gzip");
    for (Asset& form : forms) form.has_codings = forms.size() > 1;
    return forms;
}

}  // namespace

std::string content_type_of(std::string_view path) {
    const std::size_t dot = path.rfind('.');
    const std::string_view suffix = dot == std::string_view::npos ? std::string_view()
                                                                  : path.substr(dot + 1);
    if (suffix == "html") return "text/html; charset=utf-8";
    if (suffix == "js" || suffix == "mjs") return "text/javascript; charset=utf-8";
    if (suffix == "css") return "text/css; charset=utf-8";
    if (suffix == "json") return "application/json";
    if (suffix == "wasm") return "application/wasm";
    if (suffix == "svg") return "image/svg+xml";
    if (suffix == "png") return "image/png";
    if (suffix == "woff2") return "font/woff2";
    if (suffix == "txt" || suffix == "wgsl") return "text/plain; charset=utf-8";
    return "application/octet-stream";
}

Assets::Assets(const fs::path& directory) {
    // Serve the outputs of the build (wasm/, vendor/) from the binary, with and without --static. A
    // file of the --static folder replaces the embedded file of the same name.
    for (const MoexAssetRow* row = moex_asset_table; row->path; ++row)
        embedded_[row->path] = forms_of(*row);
    if (directory.empty()) return;

    std::error_code error;
    for (const auto& entry : fs::directory_iterator(directory, error)) {
        const std::string suffix = entry.path().extension().string();
        const bool is_page = suffix == ".html" || suffix == ".svg";
        // A service worker controls only pages below its own path, so it is served from the root.
        if (is_page || entry.path().filename() == "service_worker.js") add_file(directory, entry);
    }

    for (const char* folder : {"css", "js", "wasm", "vendor"})
        for (const auto& entry : fs::recursive_directory_iterator(directory / folder, error))
            add_file(directory, entry);

    if (!files_.contains("/index.html"))
        throw std::runtime_error(
            text(directory.string(), ": no index.html; --static wants the folder of the pages"));
}

void Assets::add_file(const fs::path& directory, const fs::directory_entry& entry) {
    std::error_code error;
    if (!entry.is_regular_file(error) || entry.path().filename().string().front() == '.') return;

    files_[text('/', entry.path().lexically_relative(directory).generic_string())] = entry.path();
}

bool Assets::contains(std::string_view path) const {
    const std::string_view name = path == "/" ? std::string_view("/index.html") : path;
    return files_.contains(name) || embedded_.contains(name);
}

std::string Assets::lines() const {
    std::set<std::string> paths;
    for (const auto& [path, forms] : embedded_) paths.insert(path);
    for (const auto& [path, file] : files_) paths.insert(path);

    std::string lines;
    for (const std::string& path : paths) {
        const std::optional<Asset> asset = find(path);
        if (!asset) continue;  // a page of --static was deleted after the start
        lines += text(path, ' ', asset->etag.substr(1, 2 * sizeof(Sha256)), '\n');
    }
    return lines;
}

std::optional<Asset> Assets::find(std::string_view path, std::string_view accept_encoding) const {
    const std::string_view name = path == "/" ? std::string_view("/index.html") : path;
    if (const auto file = files_.find(name); file != files_.end()) {
        std::ifstream in(file->second, std::ios::binary);
        if (!in) return std::nullopt;

        auto content = std::make_shared<const std::string>(std::istreambuf_iterator<char>(in),
                                                           std::istreambuf_iterator<char>());
        const ByteView bytes = as_byte_view(*content);
        return Asset{.bytes = bytes,
                     .keep = content,
                     .etag = text('"', to_hex(sha256(bytes)), '"'),
                     .content_type = content_type_of(name)};
    }

    const auto found = embedded_.find(name);
    if (found == embedded_.end()) return std::nullopt;

    const std::vector<Asset>& forms = found->second;
    const std::string_view coding = choose_coding(accept_encoding, codings);
    for (const Asset& form : forms)
        if (form.coding == coding) return form;
    return forms.front();
}

}  // namespace moex::net
