// The micro-benchmark in a tab: the worker of /bench.html starts it, and rows are sent with
// mx_report(). It is linked into the same program as the worker core, since it times the same
// kernels; the two never run together.
#include <emscripten.h>

#include <nlohmann/json.hpp>

#include "web-worker/browser/bridge.h"
#include "web-worker/gpu/webgpu/webgpu_device.h"
#include "web-worker/kernel_timing.h"

namespace moex {
namespace {

struct Bench {
    std::unique_ptr<gpu::Device> device;
    std::unique_ptr<KernelTiming> timing;
};
Bench& bench() {
    static Bench instance;
    return instance;
}

void tell(const nlohmann::json& message) {
    const std::string json = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    mx_report(json.data(), static_cast<int>(json.size()));
}

nlohmann::json row_json(const TimingRow& row) {
    return {{"what", row.what},     {"shape", row.shape},
            {"rows", row.rows},     {"p10_us", row.p10_us},
            {"p50_us", row.p50_us}, {"p99_us", row.p99_us},
            {"gpu_us", row.gpu_us}, {"mb", row.mb},
            {"gb_s", row.gb_s()},   {"dispatches", row.dispatches}};
}

}  // namespace

extern "C" {

// Opens the GPU. Reports {"adapter": ...}, or {"reason": ...} if there is no usable GPU.
EMSCRIPTEN_KEEPALIVE void mx_bench_open() {
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
                {"software", adapter.software}}}});
    });
}

// Reports {"row": ...} for each line, then {"done": shape}, or {"reason"}. If `bound` is not 0,
// also measures the empty round and the read bandwidth.
EMSCRIPTEN_KEEPALIVE void mx_bench_run(const char* shape, std::uint32_t size_bytes, int bound) {
    Bench& b = bench();
    const std::string name(shape, size_bytes);
    TimingOptions options = TimingOptions::bench(name, b.device->adapter());
    if (bound == 0) options.read_bytes = 0;
    b.timing.reset();  // frees the finished timing of the previous shape
    b.timing = std::make_unique<KernelTiming>(*b.device, options, [] { return 1e3 * mx_now_ms(); });
    b.timing->start(
        [](const TimingRow& row) {
            tell({{"row", row_json(row)}});
        },
        [name](Status done) {
            if (done.ok()) return tell({{"done", name}});
            tell({{"reason", done.error().message}});
        });
}

}  // extern "C"

}  // namespace moex
