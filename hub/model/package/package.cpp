#include "hub/model/package/package.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>

#include "hub/base/files.h"
#include "hub/base/log.h"
#include "hub/base/mapped_file.h"
#include "hub/base/sha256.h"
#include "hub/model/package/hub_specs.h"
#include "hub/model/package/hub_tensors.h"
#include "hub/model/package/manifest.h"
#include "hub/model/package/safetensors.h"

namespace moex {
namespace {

// Checks that the size of a file equals the size in the manifest. Returns a stamp of the file, by
// which the hub notices a later change.
Result<FileStamp> require_size(const std::filesystem::path& path, std::uint64_t wanted) {
    const auto found = stamp_of(path);
    if (!found.ok())
        return Error{found.error().code,
                     text(found.error().message, ", but manifest.json names it")};
    if (found->size_bytes != wanted)
        return Error{ErrorCode::bad_file,
                     text(path.string(), ": ", found->size_bytes, " bytes, wanted ", wanted,
                          "; truncated, or of another package?")};

    return *found;
}

// Ends the process at once, because every answer computed from a damaged package would be wrong.
[[noreturn]] void end_with(const Error& error) {
    std::fprintf(stderr, "moex-hub: %s\n", error.message.c_str());
    std::_Exit(1);
}

std::int64_t coarse_now_ms() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace

struct ModelPackage::State {
    PackageManifest manifest;
    std::filesystem::path directory;
    std::string manifest_text;
    Sha256 manifest_hash{};
    std::string manifest_sha256;
    ExpertShape expert_shape;
    std::uint64_t blob_bytes = 0;
    // blob numbers by hash, for all blobs in the manifest
    std::map<Sha256, std::uint32_t> blob_indices;
    std::vector<Sha256> hashes;  // [num_blobs]
    // blob number of each expert, [num_layers][num_experts]; a dense layer has an empty list
    std::vector<std::vector<std::uint32_t>> unit_blobs;
    std::vector<std::optional<FileStamp>> blob_stamps;  // [num_blobs]; nullopt: no file
    // [num_blobs] mapped bytes of each blob; null until the blob is mapped
    std::vector<std::atomic<const std::byte*>> blob_data;
    // [num_blobs] time of the last look at a mapped blob's file, by coarse_now_ms()
    std::vector<std::atomic<std::int64_t>> looked_ms;
    std::uint32_t num_missing = 0;
    std::optional<MappedFile> hub;
    TensorViews tensors;
    std::map<SideFile, MappedFile> sides;  // those that are on this machine, whole
    // The package in draft_head/, or why it cannot be used; nullopt if the manifest names none.
    std::optional<Result<std::shared_ptr<const ModelPackage>>> draft_head;
    std::map<std::string, std::string, std::less<>> texts;
    std::function<void(const Error&)> on_changed_bytes;  // empty: end the process
    // Held while a file is hashed: [0] for hub.safetensors and side files, the others for blobs by
    // their number.
    // Locked before `mutex`.
    std::array<std::mutex, 17> hashing;
    std::mutex mutex;
    // `mutex` guards the members below, and the stamps of all mapped files.
    std::optional<Error> changed;  // the first file that was found with other bytes
    std::vector<std::optional<MappedFile>> mapped_blobs;  // [num_blobs]; never unmapped
    std::vector<std::uint32_t> mapped_order;              // indices into mapped_blobs
    std::size_t next_checked = 0;                         // counter into mapped_order

    Status map_hub();
    Status find_blobs();
    void map_side_files();
    Result<std::shared_ptr<const ModelPackage>> open_draft_head(const Sha256& wanted) const;
    // The head's package if all of its files can be given to another machine, otherwise null.
    const ModelPackage* whole_draft_head() const;
    std::filesystem::path blob_path(const Sha256& hash) const {
        return directory / "weights" / to_hex(hash);
    }
    std::mutex& hashing_of(std::uint32_t blob_index) {
        return hashing[1 + blob_index % (hashing.size() - 1)];
    }
    Result<ByteView> blob(std::uint32_t blob_index, const Sha256& hash);
    Result<ByteView> map_blob(std::uint32_t blob_index, const Sha256& hash);
    Status check_blob(std::uint32_t blob_index, const Sha256& hash);
    Status check_same(MappedFile& file, const std::filesystem::path& path, const Sha256& wanted,
                      std::mutex& alone);
    Error end_of_use(Error error);
};

namespace {

// Returns a tensor of hub.safetensors and checks its shape and dtype. Without `dtype`, both bf16
// and f32 are accepted.
Result<const TensorView*> require_tensor(const TensorViews& file, const std::string& name,
                                         const std::vector<std::uint64_t>& shape,
                                         std::optional<TensorDtype> dtype, std::string_view words,
                                         const std::string& what) {
    const auto found = file.find(name);
    if (found == file.end())
        return Error{ErrorCode::bad_file,
                     text(what, ": tensor ", name, " is missing, wanted ", shape_text(shape))};
    const TensorView& tensor = found->second;
    if (tensor.shape != shape)
        return Error{ErrorCode::bad_file,
                     text(what, ": tensor ", name, " is ", shape_text(tensor.shape),
                          ", manifest.json wants ", shape_text(shape), " (", words, ")")};
    const bool is_right = dtype ? tensor.dtype == *dtype
                                : tensor.dtype == TensorDtype::bf16 ||
                                      tensor.dtype == TensorDtype::f32;
    if (!is_right)
        return Error{ErrorCode::bad_file,
                     text(what, ": tensor ", name, " is ", tensor_dtype_name(tensor.dtype),
                          ", wanted ", dtype ? tensor_dtype_name(*dtype) : "BF16 or F32")};
    return &tensor;
}

}  // namespace

// Maps hub.safetensors. The file must have exactly those tensors that the configuration requires.
Status ModelPackage::State::map_hub() {
    const std::filesystem::path path = directory / "hub.safetensors";
    MOEX_ASSIGN(stamp, require_size(path, manifest.hub.size_bytes));
    MOEX_ASSIGN(file, MappedFile::open(path));
    if (file.bytes().size() != stamp.size_bytes)
        return changed_file_error(path, stamp, file.stamp());

    const std::string what = path.string();
    const bool has_codes = manifest.hub_dtype != HubDtype::bf16;
    if (has_codes) MOEX_TRY(check_rows_for_codes(manifest.config));
    MOEX_ASSIGN(in_file, safetensors_views(file.bytes(), what, has_codes));

    std::size_t num_wanted = 0;
    for (const HubTensorSpec& spec : hub_tensor_specs(manifest.config)) {
        const auto dtype = codes_dtype(spec, manifest.hub_dtype);
        if (!dtype) {
            MOEX_ASSIGN(plain,
                        require_tensor(in_file, spec.name, spec.shape, {}, spec.shape_words, what));
            tensors.emplace(spec.name, *plain);
            ++num_wanted;
            continue;
        }

        const CodesLayout layout = codes_layout(spec, *dtype);
        MOEX_ASSIGN(codes, require_tensor(in_file, layout.codes.name, layout.codes.shape, *dtype,
                                          spec.shape_words, what));
        MOEX_ASSIGN(scales, require_tensor(in_file, layout.scales.name, layout.scales.shape,
                                           layout.scales.dtype, "scales of codes", what));
        tensors.emplace(spec.name, TensorView{.name = spec.name,
                                              .dtype = *dtype,
                                              .shape = spec.shape,
                                              .data = codes->data,
                                              .scales = scales->data,
                                              .group_size = layout.group_size});
        num_wanted += 2;
    }

    if (in_file.size() != num_wanted)
        return Error{ErrorCode::bad_file,
                     text(what, ": ", in_file.size(), " tensors, wanted ", num_wanted)};

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
            hashes.push_back(hash);
            const auto stamp = require_size(blob_path(hash), blob_bytes);
            if (!stamp.ok() && stamp.error().code != ErrorCode::not_found) return stamp.error();
            blob_stamps.push_back(stamp.ok() ? std::optional(*stamp) : std::nullopt);
            if (!stamp.ok()) ++num_missing;
        }
    }

    blob_data = std::vector<std::atomic<const std::byte*>>(blob_indices.size());
    looked_ms = std::vector<std::atomic<std::int64_t>>(blob_indices.size());
    mapped_blobs.resize(blob_indices.size());
    return {};
}

// Maps the side files of this machine. One that is missing or has another size is not given to
// others; SideTensors::open() says what is wrong with it.
void ModelPackage::State::map_side_files() {
    for (const auto& [side, record] : manifest.side_files)
        if (auto file = MappedFile::open(directory / side_file_name(side));
            file.ok() && file->bytes().size() == record.size_bytes)
            sides.emplace(side, *std::move(file));
}

Result<std::shared_ptr<const ModelPackage>> ModelPackage::State::open_draft_head(
    const Sha256& wanted) const {
    const std::filesystem::path path = draft_head_folder(directory) / "manifest.json";
    const auto head_text = read_text_file(path, manifest_bytes_max);
    if (!head_text.ok()) {
        if (head_text.error().code != ErrorCode::not_found) return head_text.error();
        return Error{ErrorCode::not_found, text(path.parent_path().string(),
                                                ": the draft head of this package is not here")};
    }
    const Sha256 found = sha256(as_byte_view(*head_text));
    if (found != wanted)
        return Error{ErrorCode::hash_mismatch, text(path.string(), ": SHA-256 is ", to_hex(found),
                                                    ", the model's manifest.json wants ",
                                                    to_hex(wanted), "; from another package?")};
    return ModelPackage::open(path.parent_path());
}

const ModelPackage* ModelPackage::State::whole_draft_head() const {
    if (!draft_head || !draft_head->ok() || !(**draft_head)->holds_all_blobs()) return nullptr;
    return draft_head->value().get();
}

// Returns the bytes of a blob, without a lock if it is mapped and its file was looked at just now.
Result<ByteView> ModelPackage::State::blob(std::uint32_t blob_index, const Sha256& hash) {
    constexpr std::int64_t look_every_ms = 100;
    const std::byte* const data = blob_data[blob_index].load(std::memory_order_acquire);
    if (!data) return map_blob(blob_index, hash);

    const std::int64_t now_ms = coarse_now_ms();
    if (now_ms - looked_ms[blob_index].load(std::memory_order_relaxed) >= look_every_ms) {
        MOEX_TRY(check_blob(blob_index, hash));
        looked_ms[blob_index].store(now_ms, std::memory_order_relaxed);
    }
    return ByteView(data, blob_bytes);
}

// Maps a blob at its first use and compares its bytes with its hash. Only callers that need the
// same blob wait meanwhile, and those of the few blobs that share its mutex.
Result<ByteView> ModelPackage::State::map_blob(std::uint32_t blob_index, const Sha256& hash) {
    const std::lock_guard alone(hashing_of(blob_index));
    if (const std::byte* const data = blob_data[blob_index].load(std::memory_order_acquire))
        return ByteView(data, blob_bytes);

    const std::filesystem::path path = blob_path(hash);
    MOEX_ASSIGN(file, MappedFile::open(path));
    const FileStamp now = file.stamp();
    const bool is_right = now.size_bytes == blob_bytes && sha256(file.bytes()) == hash;
    if (!is_right) {
        const std::optional<FileStamp>& before = blob_stamps[blob_index];
        if (before && now != *before) return end_of_use(changed_file_error(path, *before, now));
        return Error{ErrorCode::hash_mismatch,
                     text(path.string(),
                          ": its SHA-256 is not its name: the blob is damaged and is "
                          "not used; copy it here again (`moex-hub verify` says "
                          "what else is damaged)")};
    }

    const std::lock_guard lock(mutex);
    mapped_order.push_back(blob_index);
    mapped_blobs[blob_index].emplace(std::move(file));
    looked_ms[blob_index].store(coarse_now_ms(), std::memory_order_relaxed);
    blob_data[blob_index].store(mapped_blobs[blob_index]->bytes().data(),
                                std::memory_order_release);
    return mapped_blobs[blob_index]->bytes();
}

// Checks a blob that is mapped.
Status ModelPackage::State::check_blob(std::uint32_t blob_index, const Sha256& hash) {
    return check_same(*mapped_blobs[blob_index], blob_path(hash), hash, hashing_of(blob_index));
}

// Hashes a mapped file again if it was written to, until it rests. `alone` is held meanwhile, so
// that a second caller waits for the result of the first.
Status ModelPackage::State::check_same(MappedFile& file, const std::filesystem::path& path,
                                       const Sha256& wanted, std::mutex& alone) {
    // Returns the file's new stamp, nullopt if it has none, or the error that ended all use.
    const auto look = [&]() -> Result<std::optional<FileStamp>> {
        const std::lock_guard lock(mutex);
        if (changed) return *changed;
        return file.changed_to();
    };
    MOEX_ASSIGN(first, look());
    if (!first) return {};

    const std::lock_guard hashing_alone(alone);
    for (;;) {
        MOEX_ASSIGN(now, look());
        if (!now) return {};
        const bool is_right = now->size_bytes == file.bytes().size() &&
                              sha256(file.bytes()) == wanted;
        if (!is_right) return end_of_use(changed_file_error(path, file.stamp(), *now));

        log_info("package: a file was written again, with the same bytes",
                 kv("file", path.string()));
        const std::lock_guard lock(mutex);
        file.accept(*now);
    }
}

// Records that a file has other bytes than when the package was opened, tells the owner of the
// package once, and returns the error.
Error ModelPackage::State::end_of_use(Error error) {
    if (!on_changed_bytes) end_with(error);
    {
        const std::lock_guard lock(mutex);
        if (changed) return *changed;
        changed = error;
    }
    on_changed_bytes(error);
    return error;
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
                     ": packing is not finished; run the same `moex-hub pack` again to resume")};
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
    state.manifest_text = *std::move(manifest_text);
    state.manifest_hash = sha256(as_byte_view(state.manifest_text));
    state.manifest_sha256 = to_hex(state.manifest_hash);
    state.expert_shape = state.manifest.expert_shape();
    state.blob_bytes =
        expert_blob_layout(state.expert_shape, state.manifest.expert_dtype).size_bytes;

    MOEX_TRY(state.map_hub());
    for (const auto& [name, record] : state.manifest.files) {
        if (const auto stamp = require_size(directory / name, record.size_bytes); !stamp.ok())
            return stamp.error();
        MOEX_ASSIGN(content, read_text_file(directory / name, text_file_bytes_max(name)));
        state.texts.emplace(name, std::move(content));
    }

    MOEX_TRY(state.find_blobs());
    state.map_side_files();
    if (const auto& head = state.manifest.draft_head)
        state.draft_head = state.open_draft_head(head->sha256);
    return std::shared_ptr<const ModelPackage>(std::move(package));
}

const ModelConfig& ModelPackage::config() const { return state_->manifest.config; }
const std::string& ModelPackage::name() const { return state_->manifest.name; }
const std::filesystem::path& ModelPackage::directory() const { return state_->directory; }
const std::string& ModelPackage::manifest_sha256() const { return state_->manifest_sha256; }
ExpertDtype ModelPackage::expert_dtype() const { return state_->manifest.expert_dtype; }
HubDtype ModelPackage::hub_dtype() const { return state_->manifest.hub_dtype; }
const ExpertShape& ModelPackage::expert_shape() const { return state_->expert_shape; }
std::uint64_t ModelPackage::expert_blob_bytes() const { return state_->blob_bytes; }
const GenerationDefaults& ModelPackage::generation_defaults() const {
    return state_->manifest.generation;
}

const EmbeddingForm& ModelPackage::embedding_form() const { return state_->manifest.embedding; }

bool ModelPackage::has_draft_head() const { return state_->manifest.draft_head.has_value(); }

Result<std::shared_ptr<const ModelPackage>> ModelPackage::draft_head() const {
    if (state_->draft_head) return *state_->draft_head;
    return Error{ErrorCode::not_found,
                 text(directory().string(), ": the package has no draft head")};
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
    return found != state_->blob_indices.end() && state_->blob_stamps[found->second];
}

bool ModelPackage::must_hash(const Sha256& hash) const {
    const auto found = state_->blob_indices.find(hash);
    if (found == state_->blob_indices.end()) {
        const ModelPackage* const head = state_->whole_draft_head();
        return head && head->must_hash(hash);
    }
    return state_->blob_stamps[found->second] &&
           state_->blob_data[found->second].load(std::memory_order_acquire) == nullptr;
}

Status ModelPackage::require_all_blobs() const {
    if (holds_all_blobs()) return {};
    const auto first = std::find_if(
        state_->blob_indices.begin(), state_->blob_indices.end(),
        [&](const auto& blob) { return !state_->blob_stamps[blob.second]; });
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
    MOEX_ASSIGN(bytes, state_->blob(found->second, hash));
    MOEX_TRY(state_->check_blob(found->second, hash));
    return bytes;
}

std::vector<ModelPackage::File> ModelPackage::files() const {
    const PackageManifest& manifest = state_->manifest;
    std::vector<File> all = {{"manifest.json", state_->manifest_hash, state_->manifest_text.size()},
                             {"hub.safetensors", manifest.hub.sha256, manifest.hub.size_bytes}};
    for (const auto& [name, record] : manifest.files)
        all.push_back({name, record.sha256, record.size_bytes});
    for (const auto& [side, mapped] : state_->sides)
        all.push_back(
            {side_file_name(side), manifest.side_files.at(side).sha256, mapped.bytes().size()});
    // The indices are in the order of the layers.
    std::vector<Sha256> hashes(state_->blob_indices.size());
    for (const auto& [hash, blob_index] : state_->blob_indices) hashes[blob_index] = hash;
    for (const Sha256& hash : hashes)
        all.push_back({text("weights/", to_hex(hash)), hash, expert_blob_bytes()});
    if (const ModelPackage* const head = state_->whole_draft_head())
        for (File& file : head->files()) {
            file.name = text(draft_head_name, '/', file.name);
            all.push_back(std::move(file));
        }
    return all;
}

Result<ByteView> ModelPackage::file(const Sha256& hash) const {
    const PackageManifest& manifest = state_->manifest;
    if (hash == state_->manifest_hash) return as_byte_view(state_->manifest_text);
    if (hash == manifest.hub.sha256) {
        MOEX_TRY(state_->check_same(*state_->hub, state_->directory / "hub.safetensors",
                                    manifest.hub.sha256, state_->hashing[0]));
        return state_->hub->bytes();
    }
    for (const auto& [name, record] : manifest.files)
        if (hash == record.sha256) return as_byte_view(state_->texts.find(name)->second);
    for (auto& [side, mapped] : state_->sides) {
        if (hash != manifest.side_files.at(side).sha256) continue;
        MOEX_TRY(state_->check_same(mapped, state_->directory / side_file_name(side), hash,
                                    state_->hashing[0]));
        return mapped.bytes();
    }

    const ModelPackage* const head = state_->whole_draft_head();
    const bool is_heads = head && !state_->blob_indices.contains(hash);
    return is_heads ? head->file(hash) : blob(hash);
}

void ModelPackage::release_blob(std::uint32_t layer, std::uint32_t expert) const {
    const std::lock_guard lock(state_->mutex);
    if (const auto& file = state_->mapped_blobs[state_->unit_blobs[layer][expert]])
        file->release_pages();
}
void ModelPackage::release_hub_tensors() const { state_->hub->release_pages(); }

Status ModelPackage::check_unchanged() const {
    State& state = *state_;
    MOEX_TRY(state.check_same(*state.hub, state.directory / "hub.safetensors",
                              state.manifest.hub.sha256, state.hashing[0]));
    std::optional<std::uint32_t> next;
    {
        const std::lock_guard lock(state.mutex);
        if (state.changed) return *state.changed;
        const auto& order = state.mapped_order;
        if (!order.empty()) next = order[state.next_checked++ % order.size()];
    }
    if (!next) return {};
    return state.check_blob(*next, state.hashes[*next]);
}

void ModelPackage::on_changed_bytes(std::function<void(const Error&)> handler) const {
    if (state_->draft_head && state_->draft_head->ok())
        (**state_->draft_head)->on_changed_bytes(handler);
    state_->on_changed_bytes = std::move(handler);
}

}  // namespace moex
