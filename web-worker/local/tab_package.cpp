// ModelPackage (hub/model/package/package.h) in a tab, in place of package.cpp: the hub's decoder
// reads weights from the tab's open files. The "folder" of a package is the SHA-256 of its
// manifest, and bytes that were packed leave the memory, because a tab maps no files.
//
// The lifetimes of views are those that hub/engine needs, and shorter than a hub's:
// - A blob is valid until release_blob(). Blobs with biases, which are read beside the packed
//   expert, are not released.
// - In integer arithmetic, a matrix that the decoder packs is valid until the next call of
//   tensor(). All others are valid as long as the package: embeddings, routers, gates.
#include <set>
#include <utility>

#include "hub/model/package/hub_specs.h"
#include "hub/model/package/package.h"
#include "web-worker/local/tab_files.h"

namespace moex {

struct ModelPackage::State {
    std::unique_ptr<TabFiles> files;
    std::filesystem::path directory;
    ExpertShape expert_shape;
    // Tensors that stay in memory, by name; empty: all of them.
    std::set<std::string, std::less<>> kept_names;

    struct Held {
        Bytes data, scales;
    };
    std::map<std::string, Held, std::less<>> kept;
    Held passing;  // the last tensor that is not kept
    std::map<Sha256, Bytes> blobs;

    Result<Held> read(const std::string& name, const PackageFiles::Tensor& tensor) const;
};

namespace {

// Returns the names of the tensors that the decoder reads where they are (decoder_weights.h).
std::set<std::string, std::less<>> names_read_in_place(const ModelConfig& config) {
    std::set<std::string, std::less<>> names = {hub_tensor_name(HubPart::embeddings)};
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        for (const HubPart part :
             {HubPart::router, HubPart::shared_expert_gate, HubPart::delta_a, HubPart::delta_b})
            names.insert(hub_tensor_name(part, layer));
    return names;
}

std::uint64_t bytes_of(const PackageFiles::Tensor& tensor) {
    std::uint64_t elements = 1;
    for (const std::uint64_t size : tensor.shape) elements *= size;
    return tensor.dtype == TensorDtype::int4 ? elements / 2
                                             : elements * tensor_dtype_bytes(tensor.dtype);
}

AppendBytes append_to(Bytes& bytes) {
    return [&bytes](ByteView more) { bytes.insert(bytes.end(), more.begin(), more.end()); };
}

}  // namespace

Result<ModelPackage::State::Held> ModelPackage::State::read(
    const std::string& name, const PackageFiles::Tensor& tensor) const {
    Held held;
    const std::uint64_t size_bytes = bytes_of(tensor);
    held.data.reserve(size_bytes);
    MOEX_TRY(files->read_tensor(name, 0, size_bytes, append_to(held.data)));
    if (is_quantized(tensor.dtype)) {
        const std::uint64_t codes = tensor.dtype == TensorDtype::int4 ? 2 * size_bytes : size_bytes;
        MOEX_TRY(
            files->read_scales(name, 0, codes / tensor.group_size * 4, append_to(held.scales)));
    }
    return held;
}

ModelPackage::ModelPackage() : state_(std::make_unique<State>()) {}
ModelPackage::~ModelPackage() = default;

Result<std::shared_ptr<const ModelPackage>> ModelPackage::open(
    const std::filesystem::path& directory) {
    MOEX_ASSIGN(files, TabFiles::open(directory.string()));
    std::shared_ptr<ModelPackage> package(new ModelPackage);
    State& state = *package->state_;
    state.directory = directory;
    state.expert_shape = files->manifest().expert_shape();
    if (has_codes(files->expert_dtype())) state.kept_names = names_read_in_place(files->config());
    state.files = std::move(files);
    return std::shared_ptr<const ModelPackage>(std::move(package));
}

const ModelConfig& ModelPackage::config() const { return state_->files->config(); }
const std::filesystem::path& ModelPackage::directory() const { return state_->directory; }
ExpertDtype ModelPackage::expert_dtype() const { return state_->files->expert_dtype(); }
HubDtype ModelPackage::hub_dtype() const { return state_->files->manifest().hub_dtype; }
const ExpertShape& ModelPackage::expert_shape() const { return state_->expert_shape; }

Result<TensorView> ModelPackage::tensor(std::string_view name) const {
    const std::string key(name);
    MOEX_ASSIGN(tensor, state_->files->tensor(key));
    const bool is_kept = state_->kept_names.empty() || state_->kept_names.contains(key);
    auto found = state_->kept.find(key);
    if (found == state_->kept.end()) {
        MOEX_ASSIGN(held, state_->read(key, tensor));
        if (is_kept)
            found = state_->kept.emplace(key, std::move(held)).first;
        else
            state_->passing = std::move(held);
    }
    const State::Held& held = is_kept ? found->second : state_->passing;
    return TensorView{key, tensor.dtype, tensor.shape, held.data, held.scales, tensor.group_size};
}

Result<ByteView> ModelPackage::blob(std::uint32_t layer, std::uint32_t expert) const {
    const Sha256& hash = state_->files->manifest().experts[layer][expert];
    auto found = state_->blobs.find(hash);
    if (found == state_->blobs.end()) {
        Bytes bytes;
        bytes.reserve(
            expert_blob_layout(state_->expert_shape, state_->files->expert_dtype()).size_bytes);
        MOEX_TRY(state_->files->read_expert(layer, expert, append_to(bytes)));
        found = state_->blobs.emplace(hash, std::move(bytes)).first;
    }
    return ByteView(found->second);
}

void ModelPackage::release_blob(std::uint32_t layer, std::uint32_t expert) const {
    if (!state_->expert_shape.is_plain()) return;
    state_->blobs.erase(state_->files->manifest().experts[layer][expert]);
}
void ModelPackage::release_hub_tensors() const { state_->passing = {}; }

// Files in a tab are verified before they are opened, and nobody writes to them.
Status ModelPackage::check_unchanged() const { return {}; }

}  // namespace moex
