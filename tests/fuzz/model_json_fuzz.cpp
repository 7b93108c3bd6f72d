// Fuzzes the readers of config.json, manifest.json and generation_config.json. The first byte
// chooses the reader. An accepted value must stay the same after it is written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "hub/model/config_json.h"
#include "hub/model/hf_config.h"
#include "hub/model/package/hub_specs.h"
#include "hub/model/package/manifest.h"
#include "hub/model/strict_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace moex;
    if (size == 0) return 0;
    const std::string_view json(reinterpret_cast<const char*>(data) + 1, size - 1);
    switch (data[0] % 3) {
        case 0: {
            const auto object = parse_strict_json(json, "config.json");
            if (!object.ok()) return 0;
            const auto config = parse_hf_config(*object);
            if (!config.ok()) return 0;
            const auto again = parse_model_config(to_json(*config));
            if (!again.ok() || to_json(*again) != to_json(*config)) std::abort();
            if (hub_tensor_specs(*config).empty()) std::abort();
            return 0;
        }
        case 1: {
            const auto manifest = parse_manifest(json, "manifest.json");
            if (!manifest.ok()) return 0;
            const std::string written = manifest_to_json(*manifest);
            const auto again = parse_manifest(written, "manifest.json");
            if (!again.ok() || manifest_to_json(*again) != written) std::abort();
            return 0;
        }
        default:
            static_cast<void>(parse_generation_config(json, "{}", 1000, "generation_config.json"));
            return 0;
    }
}
