#include "hub/foresight/lossy/measured_losses.h"

#include <cmath>

#include "hub/base/files.h"
#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

constexpr std::uint64_t file_bytes_max = 1u << 20;

bool is_perplexity(const nlohmann::json& value) {
    return value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= 1;
}

}  // namespace

std::optional<double> MeasuredLosses::excess_of(std::string_view way) const {
    const auto exact = perplexity.find("exact"), lossy = perplexity.find(way);
    if (exact == perplexity.end() || lossy == perplexity.end()) return std::nullopt;
    return lossy->second / exact->second - 1;
}

void MeasuredLosses::add(MeasuredLosses newer) {
    const auto exact = perplexity.find("exact"), again = newer.perplexity.find("exact");
    const bool joins = measured_on == newer.measured_on && exact != perplexity.end() &&
                       again != newer.perplexity.end() && exact->second == again->second;
    if (joins) newer.perplexity.merge(perplexity);
    if (newer.hybrid_layers.empty()) newer.hybrid_layers = std::move(hybrid_layers);
    *this = std::move(newer);
}

Result<MeasuredLosses> load_measured_losses(const ModelPackage& package) {
    const std::string what = (package.directory() / measured_losses_file).string();
    MOEX_ASSIGN(content, read_text_file(what, file_bytes_max));
    MOEX_ASSIGN(object, parse_strict_json(content, what));
    const auto wrong = [&](const char* field, const char* wanted) {
        return Error{ErrorCode::bad_field, text(what, ": ", field, ", wanted ", wanted)};
    };
    if (!object.is_object()) return wrong("the file", "an object");
    if (object.value("manifest_sha256", nlohmann::json()) != package.manifest_sha256())
        return Error{ErrorCode::not_found, text(what, ": measured of another package")};

    MeasuredLosses losses;
    const nlohmann::json measured_on = object.value("measured_on", nlohmann::json());
    if (!measured_on.is_string()) return wrong("measured_on", "a text");
    losses.measured_on = measured_on.get<std::string>();

    const nlohmann::json perplexity = object.value("perplexity", nlohmann::json());
    if (!perplexity.is_object()) return wrong("perplexity", "an object");
    for (const auto& [way, value] : perplexity.items()) {
        if (!is_perplexity(value)) return wrong("perplexity", "numbers of 1 and more");
        losses.perplexity[way] = value.get<double>();
    }

    const nlohmann::json layers = object.value("hybrid_layers", nlohmann::json::array());
    if (!layers.is_array()) return wrong("hybrid_layers", "an array");
    for (const nlohmann::json& layer : layers) {
        const bool is_layer = layer.is_number_unsigned() &&
                              layer.get<std::uint64_t>() < package.config().num_layers;
        if (!is_layer) return wrong("hybrid_layers", "MoE layers of the model, from 0");
        losses.hybrid_layers.push_back(layer.get<std::uint32_t>());
    }
    return losses;
}

std::string to_json_text(const MeasuredLosses& losses, std::string_view manifest_sha256) {
    const nlohmann::ordered_json object{{"manifest_sha256", manifest_sha256},
                                        {"measured_on", losses.measured_on},
                                        {"perplexity", losses.perplexity},
                                        {"hybrid_layers", losses.hybrid_layers}};
    return object.dump(1) + "\n";
}

}  // namespace moex
