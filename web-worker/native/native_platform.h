// Implements Platform for a headless process: one io_context thread, a WebSocket client, timers,
// blobs by HTTP, a Vulkan device. Each worker of a process has a connection, blobs and memory of
// its own; the workers share the thread and the device (shared_device.h).
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "web-worker/native/hub_address.h"
#include "web-worker/native/identity_file.h"
#include "web-worker/worker_core.h"

namespace moex::native {

// Options for all workers of a process. Sizes in bytes are per worker.
struct NativeOptions {
    std::vector<HubUrl> hubs;  // of one fleet, or one; the first is tried first
    std::string ca_file;       // file of a further CA certificate to trust
    bool insecure_tls = false;
    std::uint64_t cache_bytes = 0;  // limit of the blob folder; 0: as many bytes as the disk takes
    std::uint64_t host_bytes = 0;   // bytes of blobs to keep in this machine's memory
    std::string token;              // the token, sent as Bearer at the upgrade, and in HELLO
    std::string device;             // Vulkan device: index or part of the name
    bool software_gpu = true;       // accept a software driver as a GPU
    // Keep-alive work between calls, while no other process uses the GPU.
    bool stay_awake = true;
    // The event loop polls for this long before it sleeps (protocol/spin_wait.h); 0: it sleeps at
    // once.
    std::chrono::microseconds spin_max{};
    // The contributor to whom a hub attributes this worker's work; null: no contributor.
    std::shared_ptr<const IdentityFile> identity;
    bool shows_nickname = false;  // show the contributor's nickname to other workers of that hub
    std::filesystem::path known_hubs;  // file of the pinned keys of hubs; empty: for this run only
    std::optional<PublicKey> hub_key;  // the key that the hub must have, whatever is pinned
    // Called at SIGUSR1, by which the operator asks for the present figures of all workers.
    std::function<void(std::span<const WorkerStatus>)> on_asked;
};

struct NativeWorker {
    std::filesystem::path cache;  // an existing folder for this worker's blobs, or empty
    WorkerOptions options;
};

// Builds the workers and runs them until a signal arrives, or until one of them fails or is
// refused. `on_status` receives each report with the worker's index. Exit code: 0 left cleanly, 1
// failed.
int run_native_workers(const NativeOptions& options, std::vector<NativeWorker> workers,
                       std::function<void(std::size_t, const WorkerStatus&)> on_status);

}  // namespace moex::native
