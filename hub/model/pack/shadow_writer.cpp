#include "hub/model/pack/shadow_writer.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "hub/base/sha256.h"
#include "hub/model/pack/whole_file.h"
#include "protocol/expert_reference.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

Result<ShadowRecord> record_of(const ModelPackage& package, const ShadowOptions& options) {
    const ModelConfig& config = package.config();
    if (!config.has_experts())
        return Error{ErrorCode::unsupported,
                     text(package.name(), ": a dense model, no experts to make a shadow of")};
    if (!package.expert_shape().is_plain())
        return Error{ErrorCode::unsupported,
                     text(package.name(),
                          ": shadows of experts with biases and a clamped SwiGLU "
                          "are not computed yet")};
    MOEX_ASSIGN(group_size, choose_group_size(config.hidden_size, config.moe_intermediate_size,
                                              std::min(options.group_size_max,
                                                       shadow_group_size_max(options.dtype))));
    ShadowRecord record{.dtype = options.dtype,
                        .name = package.name(),
                        .num_experts = config.num_experts,
                        .shape = {config.hidden_size, config.moe_intermediate_size, group_size}};
    if (has_codes(package.expert_dtype())) record.experts_sha256 = experts_hash_of(package);
    return record;
}

// Quantises all rows of a matrix one after the other. Returns false if quantize_shadow_row()
// returns false for a row.
bool quantize_matrix(const ShadowRow& shape, std::span<const float> weights,
                     std::uint32_t source_codes, std::byte*& to) {
    for (std::size_t at = 0; at < weights.size(); at += shape.row_size, to += shape.size_bytes())
        if (!quantize_shadow_row(shape, weights.subspan(at, shape.row_size), source_codes,
                                 {to, shape.size_bytes()}))
            return false;
    return true;
}

Status quantize_expert(const ModelPackage& package, const ShadowRecord& record, std::uint32_t layer,
                       std::uint32_t expert, std::span<std::byte> out) {
    MOEX_ASSIGN(blob, package.blob(layer, expert));
    MOEX_ASSIGN(view, view_expert_blob(blob, package.expert_shape(), package.expert_dtype()));
    const ExpertWeights weights = dequantize_expert(view);
    package.release_blob(layer, expert);

    const std::uint32_t source_codes = package.expert_dtype() == ExpertDtype::int4 ? 16 : 0;
    std::byte* to = out.data();
    if (quantize_matrix(record.up_row(), weights.gate, source_codes, to) &&
        quantize_matrix(record.up_row(), weights.up, source_codes, to) &&
        quantize_matrix(record.down_row(), weights.down, source_codes, to))
        return {};
    return Error{ErrorCode::bad_file,
                 text(package.directory().string(), ": layer ", layer, ", expert ", expert,
                      " holds a weight too large for a scale in f16")};
}

Status make_empty_folder(const fs::path& path) {
    std::error_code failure;
    fs::create_directories(path, failure);
    if (failure)
        return Error{ErrorCode::io_error,
                     text(path.string(), ": cannot be created: ", failure.message())};
    if (!fs::is_empty(path, failure) || failure)
        return Error{ErrorCode::invalid_argument,
                     text(path.string(), ": is not empty; choose another folder")};
    return {};
}

}  // namespace

Result<PackReport> write_shadow(const ModelPackage& package, const ShadowOptions& options,
                                const fs::path& out, ThreadPool& threads,
                                const std::function<void(const PackProgress&)>& progress) {
    MOEX_TRY(package.require_all_blobs());
    MOEX_ASSIGN(record, record_of(package, options));
    MOEX_TRY(make_empty_folder(out));

    const ModelConfig& config = package.config();
    const std::uint64_t bytes = record.expert_bytes(), blob_bytes = package.expert_blob_bytes();
    PackReport report;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        report.input_bytes += config.is_moe(layer) ? config.num_experts * blob_bytes : 0;
    PackProgress shown{.total_bytes = report.input_bytes, .num_layers = config.num_layers};

    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        if (!config.is_moe(layer)) continue;

        Bytes content(config.num_experts * bytes);
        std::mutex one_at_a_time;
        std::optional<Error> failed;
        shown.layer = layer;
        threads.parallel_for(config.num_experts, 1, [&](std::size_t begin, std::size_t end) {
            for (std::size_t expert = begin; expert < end; ++expert) {
                const Status done = quantize_expert(
                    package, record, layer, static_cast<std::uint32_t>(expert),
                    std::span(content).subspan(expert * bytes, bytes));

                const std::lock_guard lock(one_at_a_time);
                if (!done.ok()) failed = done.error();
                shown.done_bytes += blob_bytes;
                if (progress) progress(shown);
            }
        });
        if (failed) return *failed;

        MOEX_TRY(write_whole_file(out / shadow_layer_name(layer), content));
        record.layers[layer] = {content.size(), sha256(content)};
        report.output_bytes += content.size();
        report.num_blobs += config.num_experts;
    }

    const std::string json = shadow_record_to_json(record);
    MOEX_TRY(write_whole_file(out / "shadow.json", as_byte_view(json)));
    sync_directory(out);
    report.output_bytes += json.size();
    return report;
}

}  // namespace moex
