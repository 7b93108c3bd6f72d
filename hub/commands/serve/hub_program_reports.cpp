// What a hub reports to its operator: events of workers, the links, and where it computes.
#include <unistd.h>

#include <ctime>

#include "hub/base/log.h"
#include "hub/commands/output.h"
#include "hub/commands/serve/hub_program.h"
#include "hub/commands/serve/qr.h"

namespace moex {
namespace {

void log_worker_event(const WorkerEvent& event) {
    const DeviceInfo& device = event.view->device;
    const std::string detail = event.detail.empty() ? "" : text(" detail=\"", event.detail, '"');
    const auto line = [&](const char* what) {
        return text("dispatch: worker ", what, " worker=", event.worker, " device=\"",
                    device.backend, "/", device.description, "\"", detail);
    };
    switch (event.kind) {
        case WorkerEvent::Kind::joined: return log_info(line("joined"));
        case WorkerEvent::Kind::ready: return log_info(line("ready"));
        case WorkerEvent::Kind::left: return log_info(line("left"));
        case WorkerEvent::Kind::healthy: return log_info(line("healthy"));
        case WorkerEvent::Kind::unhealthy: return log_warn(line("unhealthy"));
        case WorkerEvent::Kind::removed: return log_warn(line("removed"));
        case WorkerEvent::Kind::lied: return log_warn(line("lied"));
        case WorkerEvent::Kind::banned: return log_warn(line("banned"));
        case WorkerEvent::Kind::set_aside: return log_warn(line("set aside"));
    }
}

}  // namespace

void HubProgram::on_worker_event(const WorkerEvent& event) {
    server_->on_worker_event(event);
    log_worker_event(event);
    if (pages_) pages_->know_worker(event.worker, event.view->worker_key);
    // Forget the KV pages that were computed with false answers of this worker, so that no later
    // prompt reuses them. Answers that differ too often may be false, too.
    if (event.kind == WorkerEvent::Kind::lied || event.kind == WorkerEvent::Kind::set_aside ||
        (event.kind == WorkerEvent::Kind::removed && event.code == CloseCode::policy))
        engine_->forget_worker(event.worker);
    if (event.kind == WorkerEvent::Kind::banned || event.kind == WorkerEvent::Kind::set_aside)
        engine_->compute_again_without(event.worker);

    if (event.kind != WorkerEvent::Kind::banned || event.view->worker_key.empty()) return;
    const Result<Ban> ban = registry_->bans().add(event.view->worker_key, event.view->nickname,
                                                  event.detail, std::time(nullptr));
    if (!ban.ok())
        log_error("hub: a ban is lost at the next start", kv("error", ban.error().message));
}

// Returns the name of the device that the operator chose, and of the device that computes now.
std::string HubProgram::gpu_words() const {
    const std::string& wanted = settings_.model.gpu.device;
    if (wanted == "off") return wanted;
    if (!gpu_) return wanted + " (this machine's cores)";
    if (gpu_is_lost_) return wanted + " (this machine's cores, since the GPU was lost)";
    return text(
        wanted, " (", gpu_->adapter(), "; experts: ",
        gpu_computes_experts() ? "there" : serve_backend_name(settings_.contributors.backend), ")");
}

void HubProgram::log_ready() const {
    const EngineCounters counters = engine_->counters();
    const std::uint64_t kv_tokens = counters.kv_tokens;
    const KvMemory& most = counters.memory_max;
    if (most.states > 0)
        log_info("hub: memory of texts", kv("pages_mb", most.pages >> 20),
                 kv("states_mb", most.states >> 20), kv("state_copies_mb", most.state_copies >> 20),
                 kv("drafts_mb", counters.draft_bytes_max >> 20));
    log_info("hub: listens", kv("address", server_options_.listen_address),
             kv("port", server_->port()));
    log_info("hub: ready", kv("model", model_.package->name()),
             kv("backend", swarm_computes() ? swarm_->name() : model_.local->name()),
             kv("loaded_ms", to_ms(now_steady() - started_at_)),
             kv("steps", gpu_ ? gpu_->adapter() : "cpu"),
             kv("threads", model_.threads->num_threads()), kv("kv_tokens", kv_tokens));
}

void HubProgram::print_links() const {
    const std::string url = server_->base_url(), join = server_->join_url();
    const std::string& model = model_.package->name();
    std::string out = text("\n  ", model, " is served\n\n  chat   ", url, "/\n  join   ", join,
                           "\n  status ", url, "/status.html\n  API    ", url, "/v1  (model \"",
                           model, "\")\n  agents moex-hub clients --url ", url,
                           "  prints the settings of\n         Claude Code, Codex, Qwen Code, "
                           "OpenCode, Continue and Open WebUI\n");

    if (!keys_required(server_options_))
        out += text("  admin  ", server_->make_admin_url(), "  (opens once)\n");

    if (!made_keys_.api.empty())
        out += text("\n  API key, shown this once:   ", made_keys_.api, "\n");
    if (!made_keys_.admin.empty())
        out += text("  admin key, shown this once: ", made_keys_.admin, "\n");

    if (settings_.address.always_prints_qr || isatty(STDOUT_FILENO) == 1)
        if (const std::string code = qr_half_blocks(join); !code.empty())
            out += text("\n  join by phone or another machine:\n", code);

    out += text("\nready: url=", url, " join=", join, " api=", url, "/v1\n");
    if (!print_now(out)) log_warn("hub: stdout cannot be written, so the links are not shown");
}

}  // namespace moex
