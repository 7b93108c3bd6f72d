// Platform for a headless process: one io_context thread, a
// WebSocket client, timers, blobs by HTTP, a Vulkan device.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "web-worker/native/hub_address.h"
#include "web-worker/native/identity_file.h"
#include "web-worker/worker_core.h"

namespace moex::native {

struct NativeOptions {
    HubAddress hub;
    std::filesystem::path cache;    // of blobs: a folder that exists, or empty for none
    std::uint64_t cache_bytes = 0;  // that it may hold; 0: as many as the disk takes
    std::uint64_t host_bytes = 0;   // of blobs that stay in this machine's memory
    std::string token;              // sent as Bearer at the upgrade, and in HELLO
    std::string device;             // of Vulkan: index or part of the name
    bool software_gpu = true;       // take a software driver for a GPU
    bool stay_awake = true;         // between calls, while nobody else uses the GPU
    // So long it looks for what comes before it sleeps (protocol/spin_wait.h); 0: it sleeps.
    std::chrono::microseconds spin_max{};
    // Whom this worker's work counts for at a hub that counts; null: nobody.
    std::shared_ptr<const IdentityFile> identity;
    bool shows_nickname = false;  // to other workers of that hub
    // At SIGUSR1: somebody wants its figures now.
    std::function<void(const WorkerStatus&)> on_asked;
};

// Builds the worker and runs it until a signal or an end it cannot recover
// from. `on_status` sees each report. Exit code: 0 left cleanly, 1 failed.
int run_native_worker(const NativeOptions& options, WorkerOptions worker,
                      std::function<void(const WorkerStatus&)> on_status);

}  // namespace moex::native
