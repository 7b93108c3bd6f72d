// The bench of a whole model in a tab: the worker of /bench.html starts it, and rows are sent with
// mx_report(). It is linked into the same program as "this device", since it times the same
// kernels; the two never run together.
// JSON out: {"adapter"}, {"stage"}, {"row"}, ..., {"done": shape}, or {"reason"}.
#include <emscripten.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "web-worker/decoder/decoder_timing.h"
#include "web-worker/gpu/webgpu/webgpu_device.h"
#include "web-worker/local/file_bridge.h"

namespace moex {
namespace {

using Json = nlohmann::ordered_json;

struct Bench {
    std::unique_ptr<gpu::Device> device;
    std::unique_ptr<DecoderTiming> timing;
};
Bench& bench() {
    static Bench instance;
    return instance;
}

double now_us() {
    return std::chrono::duration<double, std::micro>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void tell(const Json& message) {
    const std::string json = message.dump(-1, ' ', false, Json::error_handler_t::replace);
    mx_report(json.data(), static_cast<int>(json.size()));
}

Json row_json(const DecoderTimingOptions& options, const DecoderTimingRow& row) {
    const char* const kv = options.kv_kind == KvKind::f16  ? " kv16"
                           : options.kv_kind == KvKind::u8 ? " kv8"
                                                           : "";
    return {{"what", row.what},
            {"shape", options.shape},
            {"weights", options.weights + kv},
            {"fetch", row.fetch},
            {"tokens", row.tokens},
            {"ms_token", row.ms_token},
            {"ms_least", row.ms_least},
            {"ms_most", row.ms_most},
            {"prep_ms", row.prep_ms},
            {"issue_ms", row.issue_ms},
            {"exec_ms", row.exec_ms},
            {"fetch_ms", row.fetch_ms},
            {"model_ms", row.model_ms},
            {"utilisation", row.utilisation()},
            {"dispatches", row.dispatches},
            {"created", row.created},
            {"mb", row.mb},
            {"gb_s", row.mb > 0 ? row.gb_s() : 0.0}};
}

// Reads the bench options from `asked`; an omitted field has the default of DecoderTimingOptions.
DecoderTimingOptions options_of(const Json& asked) {
    DecoderTimingOptions options;
    options.shape = asked.value("shape", options.shape);
    options.weights = asked.value("weights", options.weights);
    const std::string kv = asked.value("kv", "f32");
    options.kv_kind = kv == "f16" ? KvKind::f16 : kv == "u8" ? KvKind::u8 : KvKind::f32;
    options.fetch = asked.value("fetch", options.fetch);
    options.tokens = asked.value("tokens", options.tokens);
    options.turns = asked.value("turns", options.turns);
    options.ablation = asked.value("ablation", options.ablation);
    options.kernels = asked.value("kernels", options.kernels);
    if (bench().device->adapter().software) options.shorten();
    return options;
}

}  // namespace

extern "C" {

EMSCRIPTEN_KEEPALIVE void mx_decoder_bench_open() {
    gpu::open_webgpu_device([](Result<std::unique_ptr<gpu::Device>> opened) {
        if (!opened.ok()) return tell({{"reason", opened.error().message}});
        bench().device = std::move(*opened);
        bench().device->on_lost([](const gpu::Loss& loss) {
            tell({{"reason", "The GPU was lost: " + loss.reason}});
        });
        const gpu::AdapterInfo& adapter = bench().device->adapter();
        tell({{"adapter",
               {{"vendor", adapter.vendor},
                {"architecture", adapter.architecture},
                {"description", adapter.description},
                {"has_f16", adapter.has_f16},
                {"software", adapter.software}}}});
    });
}

// Measures one model. `json`: {"shape", "weights", "kv", "fetch": [..], "tokens", "turns",
// "ablation", "kernels"}.
EMSCRIPTEN_KEEPALIVE void mx_decoder_bench_run(const char* json, std::uint32_t size_bytes) {
    const Json asked = Json::parse(std::string_view(json, size_bytes), nullptr, false);
    if (!asked.is_object())
        return tell({{"reason", "the request of the bench is not a JSON object"}});
    const DecoderTimingOptions options = options_of(asked);
    if (options.fetch.empty() || options.turns == 0 || options.tokens < 4 * options.turns)
        return tell({{"reason", "each turn needs four tokens, each readback one"}});

    Bench& b = bench();
    b.timing.reset();  // frees the finished timing of the previous model
    b.timing = std::make_unique<DecoderTiming>(*b.device, options, now_us);
    b.timing->on_stage = [](std::string_view stage) { tell({{"stage", std::string(stage)}}); };
    b.timing->start(
        [options](const DecoderTimingRow& row) {
            tell({{"row", row_json(options, row)}});
        },
        [name = options.shape](Status done) {
            if (done.ok()) return tell({{"done", name}});
            tell({{"reason", done.error().message}});
        });
}

}  // extern "C"

}  // namespace moex
