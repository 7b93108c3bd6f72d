// A worker's status as JSON for the page: the field names of WorkerStatus.
#pragma once

#include <nlohmann/json.hpp>

#include "web-worker/session/platform.h"

namespace moex {

inline nlohmann::json device_counters_json(const gpu::DeviceCounters& counters) {
    return {{"buffers_created", counters.buffers_created},
            {"bind_groups_created", counters.bind_groups_created},
            {"pipelines_created", counters.pipelines_created},
            {"submits", counters.submits},
            {"readbacks", counters.readbacks},
            {"buffer_writes", counters.buffer_writes},
            {"bytes_written", counters.bytes_written},
            {"bytes_read", counters.bytes_read},
            {"buffer_bytes", counters.buffer_bytes}};
}

inline nlohmann::json status_json(const WorkerStatus& status) {
    return {
        {"phase", worker_phase_name(status.phase)},
        {"detail", status.detail},
        {"worker_id", status.worker_id},
        {"model_name", status.model_name},
        {"nonce", status.nonce},
        {"power_percent", status.power_percent},
        {"adapter",
         {{"backend", status.adapter.backend},
          {"vendor", status.adapter.vendor},
          {"architecture", status.adapter.architecture},
          {"description", status.adapter.description},
          {"software", status.adapter.software}}},
        {"no_gpu", status.no_gpu},
        {"units_assigned", status.units_assigned},
        {"units_ready", status.units_ready},
        {"units_resident", status.units_resident},
        {"layers_first", status.layers_first},
        {"layers_end", status.layers_end},
        {"slots",
         {{"asked", status.slots.asked},
          {"resident", status.slots.resident},
          {"late", status.slots.late},
          {"loads", status.slots.loads},
          {"load_ms", status.slots.load_ms},
          {"prefetched", status.slots.prefetched},
          {"wasted", status.slots.wasted}}},
        {"bytes_to_fetch", status.bytes_to_fetch},
        {"bytes_fetched", status.bytes_fetched},
        {"bytes_downloaded", status.bytes_downloaded},
        {"weights_bytes", status.weights_bytes},
        {"budget_bytes", status.budget_bytes},
        {"groups_answered", status.groups_answered},
        {"pairs_answered", status.pairs_answered},
        {"groups_cancelled", status.groups_cancelled},
        {"errors", status.errors},
        {"frames_received", status.frames_received},
        {"frames_sent", status.frames_sent},
        {"bytes_received", status.bytes_received},
        {"bytes_sent", status.bytes_sent},
        {"self_test_rounds", status.self_test_rounds},
        {"self_test_nrmse", status.self_test_nrmse},
        {"round_ms_p50", status.round_ms_p50},
        {"round_ms_p99", status.round_ms_p99},
        {"gpu_us_p50", status.gpu_us_p50},
        {"speed", {{"expert_ns", status.speed.expert_ns}, {"read_mb_s", status.speed.read_mb_s}}},
        {"retry_at_ms", status.retry_at_ms},
        {"device", device_counters_json(status.device)},
        {"rounds_at_warm", status.rounds_at_warm},
        {"device_at_warm", device_counters_json(status.device_at_warm)},
    };
}

}  // namespace moex
