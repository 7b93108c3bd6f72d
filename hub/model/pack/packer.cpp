#include "hub/model/pack/packer.h"

#include <algorithm>
#include <set>

#include "hub/base/sha256.h"
#include "hub/model/pack/expert_writer.h"
#include "hub/model/pack/input_reader.h"
#include "hub/model/pack/layer_writer.h"
#include "hub/model/pack/package_writer.h"
#include "hub/model/package/draft_head.h"

namespace moex {
namespace {

namespace fs = std::filesystem;
// number of tensor elements that the packer of the hub's tensors holds in memory at a time
constexpr std::size_t window_floats = 1u << 18;

// Counts the bytes that were read from the checkpoint, for the progress bar.
struct Meter {
    const std::function<void(const PackProgress&)>& report;
    PackProgress state;
    void add(std::uint64_t bytes) {
        state.done_bytes = std::min(state.done_bytes + bytes, state.total_bytes);
        if (report) report(state);
    }
};

// Packs one tensor of the hub as plain elements or as codes, one window of rows at a time.
class HubTensorPacker {
  public:
    HubTensorPacker(PackInput& input, Meter& meter) : input_(input), meter_(meter) {}

    Status write(std::size_t index, const PackageOutput::WriteBytes& write) {
        const HubEntry& entry = input_.hub.of[index];
        if (entry.is_scales) return write(coder_.scales());
        if (entry.codes)
            coder_.begin(codes_layout(input_.hub_specs[entry.spec_index], *entry.codes));

        const TensorReader& source = *input_.hub_sources[entry.spec_index];
        const bool as_f32 = input_.hub_dtypes[entry.spec_index] == TensorDtype::f32;
        const std::uint64_t row_size = source.info().row_size(),
                            num_rows = source.info().num_elements() / row_size,
                            window_rows = std::max<std::uint64_t>(1, window_floats / row_size);
        for (std::uint64_t row = 0; row < num_rows; row += window_rows) {
            floats_.resize(std::min(window_rows, num_rows - row) * row_size);
            MOEX_TRY(source.read_rows(row, floats_, raw_));
            encoded_.resize(floats_.size() * (as_f32 ? 4 : 2));
            MOEX_TRY(encode_weights(floats_, as_f32, encoded_, source.info()));
            if (entry.codes) MOEX_TRY(encode_codes(source.info(), as_f32));
            MOEX_TRY(write(encoded_));
            meter_.add(source.info().stored_bytes * std::min(window_rows, num_rows - row) /
                       num_rows);
        }
        return {};
    }

  private:
    // Rounds the weights as a package without codes would store them, and encodes the rounded
    // weights. The codes then equal those that the hub computes when it loads a package without
    // codes.
    Status encode_codes(const TensorInfo& source, bool as_f32) {
        elements_to_float(as_f32 ? TensorDtype::f32 : TensorDtype::bf16, encoded_.data(), floats_);
        if (coder_.add(floats_, encoded_)) return {};
        return Error{ErrorCode::non_finite,
                     text(source.where(),
                          " holds a weight too large for --hub-dtype int4: its scale is f16")};
    }

    PackInput& input_;
    Meter& meter_;
    RowCoder coder_;
    std::vector<float> floats_;
    Bytes raw_, encoded_;
};

Result<FileRecord> pack_hub(PackInput& input, PackageOutput& output, Meter& meter) {
    if (const auto finished = output.finished_hub()) return *finished;
    HubTensorPacker packer(input, meter);
    return output.write_hub(input.hub.entries,
                            [&](std::size_t index, const PackageOutput::WriteBytes& write) {
                                return packer.write(index, write);
                            });
}

std::uint64_t output_bytes_of(const PackInput& input) {
    std::uint64_t total = 1u << 20;  // reserve for manifest, headers and file system
    for (const SafetensorsEntry& entry : input.hub.entries) {
        std::uint64_t bytes = tensor_dtype_bytes(*entry.dtype);
        for (const std::uint64_t size : entry.shape) bytes *= size;
        total += bytes;
    }

    for (const auto& layer : input.experts)
        total += layer.size() * (input.layout.size_bytes + 4096);
    for (const auto& [name, content] : input.texts) total += content.size();
    if (input.draft_head) total += output_bytes_of(*input.draft_head);
    return total;
}

// Writes all files of a package but its manifest, which is returned.
Result<PackageManifest> write_files(PackInput& input, PackageOutput& output, ThreadPool& threads,
                                    Meter& meter, PackReport& report, const PackSteps& steps) {
    const ModelConfig& config = input.config;
    PackageManifest manifest{.name = input.options.name,
                             .config = config,
                             .expert_dtype = input.options.expert_dtype,
                             .group_size = input.shape.group_size,
                             .hub_dtype = input.options.hub_dtype,
                             .generation = input.generation,
                             .embedding = input.source.embedding.value_or(EmbeddingForm{})};
    LossMeter losses;
    std::set<Sha256> blobs;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        manifest.experts.emplace_back();
        if (!config.is_moe(layer)) continue;

        const auto& sources = input.experts[layer];
        const auto bytes_of = [&](std::uint32_t expert) {
            return input.expert_bytes(sources[expert]);
        };

        meter.state.layer = layer;
        if (auto finished = output.finished_layer(layer, config.num_experts,
                                                  input.layout.size_bytes)) {
            manifest.experts.back() = std::move(*finished);
            ++report.layers_resumed;
            for (std::uint32_t expert = 0; expert < config.num_experts; ++expert)
                meter.add(bytes_of(expert));
        } else {
            if (steps.before_layer) MOEX_TRY(steps.before_layer(layer));
            MOEX_ASSIGN(hashes, write_layer_blobs(
                                    output, config.num_experts, input.layout.size_bytes, threads,
                                    [&](std::uint32_t expert, std::span<std::byte> blob) {
                                        return write_expert_blob(input, sources[expert], losses,
                                                                 blob);
                                    },
                                    [&](std::uint32_t expert) { meter.add(bytes_of(expert)); }));
            MOEX_TRY(output.finish_layer(layer, hashes));
            manifest.experts.back() = std::move(hashes);
            if (steps.after_layer) MOEX_TRY(steps.after_layer(layer));
        }

        blobs.insert(manifest.experts.back().begin(), manifest.experts.back().end());
    }

    if (steps.before_hub) MOEX_TRY(steps.before_hub());
    MOEX_ASSIGN(hub, pack_hub(input, output, meter));
    manifest.hub = hub;
    report.losses = losses.losses();
    report.num_blobs += static_cast<std::uint32_t>(blobs.size());
    report.output_bytes += hub.size_bytes + blobs.size() * input.layout.size_bytes;

    for (const auto& [name, content] : input.texts) {
        MOEX_ASSIGN(record, output.write_text(name, content));
        manifest.files[name] = record;
        report.output_bytes += record.size_bytes;
    }
    return manifest;
}

// Writes the draft head as a package of its own below the folder `out`. Returns the record of its
// manifest. A head that an interrupted call has finished is written again, since it is small.
Result<FileRecord> write_draft_head(PackInput& input, const fs::path& out, ThreadPool& threads,
                                    Meter& meter, PackReport& report) {
    const fs::path folder = draft_head_folder(out);
    std::error_code ignored;
    if (fs::exists(folder / "manifest.json", ignored)) fs::remove_all(folder, ignored);

    MOEX_ASSIGN(output, PackageOutput::open(folder, input.identity, output_bytes_of(input)));
    PackReport own;
    MOEX_ASSIGN(manifest, write_files(input, output, threads, meter, own, {}));
    MOEX_TRY(output.finish(manifest));
    const std::string text = manifest_to_json(manifest);
    report.output_bytes += own.output_bytes + text.size();
    return FileRecord{sha256(as_byte_view(text)), text.size()};
}

Result<PackReport> write_package(PackInput& input, const fs::path& out, PackageOutput& output,
                                 ThreadPool& threads,
                                 const std::function<void(const PackProgress&)>& progress,
                                 const PackSteps& steps) {
    const std::uint64_t head_bytes = input.draft_head ? input.draft_head->used_bytes : 0,
                        used_bytes = input.used_bytes + head_bytes;
    PackReport report{.input_bytes = used_bytes, .warnings = input.warnings};
    Meter meter{progress, {.total_bytes = used_bytes, .num_layers = input.config.num_layers}};

    MOEX_ASSIGN(manifest, write_files(input, output, threads, meter, report, steps));
    if (input.draft_head) {
        MOEX_ASSIGN(head, write_draft_head(*input.draft_head, out, threads, meter, report));
        manifest.draft_head = head;
    }
    MOEX_TRY(output.finish(manifest));
    meter.add(used_bytes);
    return report;
}

}  // namespace

Result<PackReport> pack_checkpoint(const fs::path& checkpoint, const fs::path& out,
                                   const PackOptions& options, ThreadPool& threads,
                                   const std::function<void(const PackProgress&)>& progress,
                                   const PackSteps& steps) {
    MOEX_ASSIGN(input, read_pack_input(checkpoint, options));
    MOEX_ASSIGN(output, PackageOutput::open(out, input.identity, output_bytes_of(input)));
    // The caller's own errors, such as a broken connection, leave the finished layers.
    bool step_failed = false;
    const auto noted = [&](Status status) {
        step_failed |= !status.ok();
        return status;
    };
    PackSteps watched;
    if (steps.before_layer)
        watched.before_layer = [&](std::uint32_t layer) {
            return noted(steps.before_layer(layer));
        };
    if (steps.after_layer)
        watched.after_layer = [&](std::uint32_t layer) { return noted(steps.after_layer(layer)); };
    if (steps.before_hub) watched.before_hub = [&] { return noted(steps.before_hub()); };

    auto report = write_package(input, out, output, threads, progress, watched);
    const bool may_go_on = report.ok() || step_failed ||
                           report.error().code == ErrorCode::io_error ||
                           report.error().code == ErrorCode::no_space;
    if (!may_go_on) output.discard();
    return report;
}

}  // namespace moex
