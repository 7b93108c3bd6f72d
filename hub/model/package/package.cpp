#include "hub/model/package/package.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>

#include <sys/stat.h>

#include "hub/base/files.h"
#include "hub/base/sha256.h"
#include "hub/model/package/manifest.h"
#include "hub/model/package/safetensors.h"

namespace moex {
namespace {

constexpr std::uint64_t manifest_bytes_max = 64u << 20;

Result<std::uint64_t> regular_file_bytes(const std::filesystem::path& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) {
        const ErrorCode code = errno == ENOENT || errno == ENOTDIR ? ErrorCode::not_found
                                                                   : ErrorCode::io_error;
        return Error{code, text(path.string(), ": ", std::strerror(errno))};
    }
    if (!S_ISREG(info.st_mode))
        return Error{ErrorCode::bad_file, text(path.string(), ": not a regular file")};
    return static_cast<std::uint64_t>(info.st_size);
}

Status require_size(const std::filesystem::path& path, std::uint64_t wanted) {
    const auto found = regular_file_bytes(path);
    if (!found.ok())
        return Error{found.error().code,
                     text(found.error().message, ", but manifest.json names it")};
    if (*found != wanted)
        return Error{ErrorCode::bad_file, text(path.string(), ": ", *found, " bytes, wanted ",
                                               wanted, "; truncated, or of another package?")};
    return {};
}

}  // namespace

struct ModelPackage::State {
    PackageManifest manifest;
    std::filesystem::path directory;
    std::string manifest_sha256;
    ExpertShape expert_shape;
    std::uint64_t blob_bytes = 0;
    std::map<Sha256, std::uint32_t> blob_indices;  // all that the manifest names
    std::vector<std::vector<std::uint32_t>>
        unit_blobs;                  // [num_layers][num_experts]; empty for a dense layer
    std::vector<bool> blob_is_here;  // [num_blobs]
    std::vector<std::atomic<const std::byte*>> blob_data;  // [num_blobs]; null until mapped
    std::uint32_t num_missing = 0;
    std::optional<MappedFile> hub;
    std::map<std::string, TensorView, std::less<>> tensors;
    std::map<std::string, std::string, std::less<>> texts;
    std::mutex mutex;
    std::vector<MappedFile> mapped_blobs;  // guarded by `mutex`; only grows

    Status map_hub();
    Status find_blobs();
    std::filesystem::path blob_path(const Sha256& hash) const {
        return directory / "weights" / to_hex(hash);
    }
    Result<ByteView> blob(std::uint32_t blob_index, const Sha256& hash);
};

// The hub's tensors must be exactly those that the configuration wants, in bf16 or f32.
Status ModelPackage::State::map_hub() {
    const std::filesystem::path path = directory / "hub.safetensors";
    MOEX_TRY(require_size(path, manifest.hub.size_bytes));
    MOEX_ASSIGN(file, MappedFile::open(path));
    MOEX_ASSIGN(header, safetensors_header_of(file.bytes(), path.string()));
    MOEX_ASSIGN(entries, parse_safetensors_header(header, file.bytes().size(), path.string()));
    for (SafetensorsEntry& entry : entries) {
        if (!entry.dtype || *entry.dtype == TensorDtype::f16)
            return Error{ErrorCode::bad_file,
                         text(path.string(), ": tensor ", entry.name.substr(0, 200), " is ",
                              entry.dtype_word, ", wanted BF16 or F32")};
        if (const std::uint32_t element_bytes = tensor_dtype_bytes(*entry.dtype);
            entry.offset_bytes % element_bytes != 0)
            return Error{
                ErrorCode::bad_file,
                text(path.string(), ": tensor ", entry.name.substr(0, 200), " begins at byte ",
                     entry.offset_bytes, ", wanted a multiple of ", element_bytes)};
        TensorView view{entry.name, *entry.dtype, std::move(entry.shape),
                        file.bytes().subspan(entry.offset_bytes, entry.size_bytes)};
        tensors.emplace(entry.name, std::move(view));
    }
    const auto specs = hub_tensor_specs(manifest.config);
    for (const HubTensorSpec& spec : specs) {
        const auto found = tensors.find(spec.name);
        if (found == tensors.end())
            return Error{ErrorCode::bad_file, text(path.string(), ": tensor ", spec.name,
                                                   " is missing, wanted ", shape_text(spec.shape))};
        if (found->second.shape != spec.shape)
            return Error{ErrorCode::bad_file,
                         text(path.string(), ": tensor ", spec.name, " is ",
                              shape_text(found->second.shape), ", manifest.json wants ",
                              shape_text(spec.shape), " (", spec.shape_words, ")")};
    }
    if (tensors.size() != specs.size())
        return Error{ErrorCode::bad_file,
                     text(path.string(), ": ", tensors.size(), " tensors, wanted ", specs.size())};
    hub = std::move(file);
    return {};
}

Status ModelPackage::State::find_blobs() {
    for (const auto& layer : manifest.experts) {
        unit_blobs.emplace_back();
        for (const Sha256& hash : layer) {
            const auto [entry, fresh] = blob_indices.emplace(
                hash, static_cast<std::uint32_t>(blob_indices.size()));
            unit_blobs.back().push_back(entry->second);
            if (!fresh) continue;
            const Status status = require_size(blob_path(hash), blob_bytes);
            if (!status.ok() && status.error().code != ErrorCode::not_found) return status;
            blob_is_here.push_back(status.ok());
            if (!status.ok()) ++num_missing;
        }
    }
    blob_data = std::vector<std::atomic<const std::byte*>>(blob_indices.size());
    return {};
}

Result<ByteView> ModelPackage::State::blob(std::uint32_t blob_index, const Sha256& hash) {
    if (const std::byte* const data = blob_data[blob_index].load(std::memory_order_acquire))
        return ByteView(data, blob_bytes);
    const std::lock_guard lock(mutex);
    if (const std::byte* const data = blob_data[blob_index].load(std::memory_order_relaxed))
        return ByteView(data, blob_bytes);
    MOEX_ASSIGN(file, MappedFile::open(blob_path(hash)));
    if (file.bytes().size() != blob_bytes)
        return Error{ErrorCode::bad_file, text(blob_path(hash).string(), ": ", file.bytes().size(),
                                               " bytes, wanted ", blob_bytes)};
    blob_data[blob_index].store(file.bytes().data(), std::memory_order_release);
    mapped_blobs.push_back(std::move(file));
    return mapped_blobs.back().bytes();
}

ModelPackage::ModelPackage() : state_(std::make_unique<State>()) {}
ModelPackage::~ModelPackage() = default;

Result<std::shared_ptr<const ModelPackage>> ModelPackage::open(
    const std::filesystem::path& directory) {
    std::error_code ignored;
    const std::filesystem::path manifest_path = directory / "manifest.json";
    auto manifest_text = read_text_file(manifest_path, manifest_bytes_max);
    if (!manifest_text.ok()) {
        if (manifest_text.error().code != ErrorCode::not_found) return manifest_text.error();
        if (std::filesystem::exists(directory / ".pack-state", ignored))
            return Error{
                ErrorCode::not_found,
                text(directory.string(),
                     ": packing is not finished; run the same `moex-hub pack` again, it goes on")};
        if (std::filesystem::exists(directory / "config.json", ignored))
            return Error{
                ErrorCode::not_found,
                text(directory.string(), ": a checkpoint, not a package; run `moex-hub pack ",
                     directory.string(), " OUT` first")};
        return Error{
            ErrorCode::not_found,
            text(manifest_path.string(), ": not found; is this a folder made by `moex-hub pack`?")};
    }
    MOEX_ASSIGN(manifest, parse_manifest(*manifest_text, manifest_path.string()));

    std::shared_ptr<ModelPackage> package(new ModelPackage);
    State& state = *package->state_;
    state.manifest = std::move(manifest);
    state.directory = directory;
    state.manifest_sha256 = to_hex(sha256(as_byte_view(*manifest_text)));
    state.expert_shape = state.manifest.expert_shape();
    state.blob_bytes =
        expert_blob_layout(state.expert_shape, state.manifest.expert_dtype).size_bytes;
    MOEX_TRY(state.map_hub());
    for (const auto& [name, record] : state.manifest.files) {
        MOEX_TRY(require_size(directory / name, record.size_bytes));
        MOEX_ASSIGN(content, read_text_file(directory / name, text_file_bytes_max(name)));
        state.texts.emplace(name, std::move(content));
    }
    MOEX_TRY(state.find_blobs());
    return std::shared_ptr<const ModelPackage>(std::move(package));
}

const ModelConfig& ModelPackage::config() const { return state_->manifest.config; }
const std::string& ModelPackage::name() const { return state_->manifest.name; }
const std::filesystem::path& ModelPackage::directory() const { return state_->directory; }
const std::string& ModelPackage::manifest_sha256() const { return state_->manifest_sha256; }
ExpertDtype ModelPackage::expert_dtype() const { return state_->manifest.expert_dtype; }
const ExpertShape& ModelPackage::expert_shape() const { return state_->expert_shape; }
std::uint64_t ModelPackage::expert_blob_bytes() const { return state_->blob_bytes; }
const GenerationDefaults& ModelPackage::generation_defaults() const {
    return state_->manifest.generation;
}

std::optional<std::string> ModelPackage::tokenizer_file(std::string_view file_name) const {
    const auto found = state_->texts.find(file_name);
    if (found == state_->texts.end()) return std::nullopt;
    return found->second;
}

Result<TensorView> ModelPackage::tensor(std::string_view name) const {
    const auto found = state_->tensors.find(name);
    if (found == state_->tensors.end())
        return Error{ErrorCode::not_found, text(state_->directory.string(), ": no tensor ", name)};
    return found->second;
}

const Sha256& ModelPackage::blob_hash(std::uint32_t layer, std::uint32_t expert) const {
    const auto& experts = state_->manifest.experts;
    MOEX_CHECK(layer < experts.size() && expert < experts[layer].size(),
               text("no expert ", expert, " in layer ", layer));
    return experts[layer][expert];
}

std::filesystem::path ModelPackage::blob_path(const Sha256& hash) const {
    return state_->blob_path(hash);
}
std::uint32_t ModelPackage::num_blobs() const {
    return static_cast<std::uint32_t>(state_->blob_indices.size());
}
std::uint32_t ModelPackage::num_missing_blobs() const { return state_->num_missing; }

bool ModelPackage::has_blob(const Sha256& hash) const {
    const auto found = state_->blob_indices.find(hash);
    return found != state_->blob_indices.end() && state_->blob_is_here[found->second];
}

Status ModelPackage::require_all_blobs() const {
    if (holds_all_blobs()) return {};
    const auto first = std::find_if(
        state_->blob_indices.begin(), state_->blob_indices.end(),
        [&](const auto& blob) { return !state_->blob_is_here[blob.second]; });
    return Error{ErrorCode::not_found,
                 text((state_->directory / "weights").string(), ": ", num_missing_blobs(), " of ",
                      num_blobs(), " expert blobs are missing, the first: ", to_hex(first->first),
                      "; copy them here or pack again")};
}

Result<ByteView> ModelPackage::blob(std::uint32_t layer, std::uint32_t expert) const {
    const Sha256& hash = blob_hash(layer, expert);
    return state_->blob(state_->unit_blobs[layer][expert], hash);
}

Result<ByteView> ModelPackage::blob(const Sha256& hash) const {
    const auto found = state_->blob_indices.find(hash);
    if (found == state_->blob_indices.end())
        return Error{ErrorCode::not_found,
                     text("no blob ", to_hex(hash), " in ", state_->directory.string())};
    return state_->blob(found->second, hash);
}

Status verify_package(const std::filesystem::path& directory,
                      const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    MOEX_ASSIGN(package, ModelPackage::open(directory));
    MOEX_TRY(package->require_all_blobs());
    MOEX_ASSIGN(manifest_text, read_text_file(directory / "manifest.json", manifest_bytes_max));
    MOEX_ASSIGN(manifest, parse_manifest(manifest_text, (directory / "manifest.json").string()));
    struct Check {
        std::filesystem::path path;
        Sha256 wanted;
        std::uint64_t size_bytes;
    };
    std::vector<Check> checks{
        {directory / "hub.safetensors", manifest.hub.sha256, manifest.hub.size_bytes}};
    for (const auto& [name, file] : manifest.files)
        checks.push_back({directory / name, file.sha256, file.size_bytes});
    std::set<Sha256> seen;
    for (const auto& layer : manifest.experts)
        for (const Sha256& hash : layer)
            if (seen.insert(hash).second)
                checks.push_back({package->blob_path(hash), hash, package->expert_blob_bytes()});
    std::uint64_t total = 0, done = 0;
    for (const Check& check : checks) total += check.size_bytes;
    for (const Check& check : checks) {
        MOEX_ASSIGN(found, sha256_file(check.path));
        if (found != check.wanted)
            return Error{ErrorCode::hash_mismatch,
                         text(check.path.string(), ": SHA-256 is ", to_hex(found), ", wanted ",
                              to_hex(check.wanted), "; damaged, pack again")};
        done += check.size_bytes;
        if (progress) progress(done, total);
    }
    return {};
}

}  // namespace moex
