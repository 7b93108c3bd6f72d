// Platform for a headless process: one io_context thread, a WebSocket client, timers, blobs by
// HTTP, a Vulkan device. Several workers of a process have a connection, blobs and memory each; the
// thread and the device (shared_device.h) are all of theirs.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "web-worker/native/hub_address.h"
#include "web-worker/native/identity_file.h"
#include "web-worker/worker_core.h"

namespace moex::native {

// Of all workers of a process; bytes are of each.
struct NativeOptions {
    HubAddress hub;
    std::uint64_t cache_bytes = 0;  // that its folder may hold; 0: as many as the disk takes
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
    // At SIGUSR1: somebody wants figures now.
    std::function<void(std::span<const WorkerStatus>)> on_asked;
};

struct NativeWorker {
    std::filesystem::path cache;  // of blobs: a folder that exists, of its own, or empty for none
    WorkerOptions options;
};

// Builds the workers and runs them until a signal, or an end that one of them cannot recover from.
// `on_status` sees each report, and whose it is. Exit code: 0 left cleanly, 1 failed.
int run_native_workers(const NativeOptions& options, std::vector<NativeWorker> workers,
                       std::function<void(std::size_t, const WorkerStatus&)> on_status);

}  // namespace moex::native
