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

std::optional<double> MeasuredLosses::excess_of(std::string_view mode) const {
    const auto exact = perplexity.find("exact"), lossy = perplexity.find(mode);
    if (exact == perplexity.end() || lossy == perplexity.end()) return std::nullopt;
    return lossy->second / exact->second - 1;
}

void MeasuredLosses::add(MeasuredLosses newer) {
    const auto exact = perplexity.find("exact"), again = newer.perplexity.find("exact");
    const bool joins = measured_on == newer.measured_on && exact != perplexity.end() &&
                       again != newer.perplexity.end() && exact->second == again->second;
    if (joins) newer.perplexity.merge(perplexity);
    *this = std::move(newer);
}

Result<MeasuredLosses> load_measured_losses(const ModelPackage& package) {
    const std::string path = (package.directory() / measured_losses_file).string();
    MOEX_ASSIGN(content, read_text_file(path, file_bytes_max));
    MOEX_ASSIGN(object, parse_strict_json(content, path));
    const auto wrong = [&](const char* field, const char* wanted) {
        return Error{ErrorCode::bad_field, text(path, ": ", field, ", wanted ", wanted)};
    };
    if (!object.is_object()) return wrong("the file", "an object");
    if (object.value("manifest_sha256", nlohmann::json()) != package.manifest_sha256())
        return Error{ErrorCode::not_found, text(path, ": belongs to another package")};

    MeasuredLosses losses;
    const nlohmann::json measured_on = object.value("measured_on", nlohmann::json());
    if (!measured_on.is_string()) return wrong("measured_on", "a text");
    losses.measured_on = measured_on.get<std::string>();

    const nlohmann::json perplexity = object.value("perplexity", nlohmann::json());
    if (!perplexity.is_object()) return wrong("perplexity", "an object");
    for (const auto& [mode, value] : perplexity.items()) {
        if (!is_perplexity(value)) return wrong("perplexity", "numbers of 1 and more");
        losses.perplexity[mode] = value.get<double>();
    }
    return losses;
}

std::string to_json_text(const MeasuredLosses& losses, std::string_view manifest_sha256) {
    const nlohmann::ordered_json object{{"manifest_sha256", manifest_sha256},
                                        {"measured_on", losses.measured_on},
                                        {"perplexity", losses.perplexity}};
    return object.dump(1) + "\n";
}

}  // namespace moex
