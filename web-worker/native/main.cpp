// moex-worker: a headless expert worker on a Vulkan
// GPU, for machines without a browser and for tests.
#include <CLI/CLI.hpp>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>

#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/native/native_platform.h"

namespace {

using namespace moex;

std::string random_key() {
    std::random_device device;
    std::string key;
    for (int i = 0; i < 32; ++i) key += "0123456789abcdef"[device() % 16];
    return key;
}

// One line per change, and one when it serves: scripts wait for "serving units=".
class StatusLog {
  public:
    void operator()(const WorkerStatus& status) {
        const bool serving = status.phase == WorkerPhase::serving;
        if (status.phase == last_phase_ && status.detail == last_detail_ &&
            (!serving || status.units_ready == last_units_))
            return;
        last_phase_ = status.phase;
        last_detail_ = status.detail;
        last_units_ = status.units_ready;
        if (serving) {
            std::cout << "serving units=" << status.units_ready << " adapter=\""
                      << status.adapter.description << '"'
                      << (status.adapter.software ? " software" : "")
                      << " model=" << status.model_name
                      << " downloaded_bytes=" << status.bytes_downloaded
                      << " self_test_nrmse=" << status.self_test_nrmse << std::endl;
            return;
        }
        std::cerr << "worker: " << worker_phase_name(status.phase)
                  << (status.detail.empty() ? "" : ": ") << status.detail << std::endl;
    }

  private:
    WorkerPhase last_phase_ = WorkerPhase::stopped;
    std::string last_detail_;
    std::uint32_t last_units_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"Computes experts of a MoEx hub on this machine's GPU, without a browser."};
    app.footer(
        "The join token comes from MOEX_TOKEN, --token-file, or the fragment of a join link given "
        "as --hub.\n"
        "example: MOEX_TOKEN=... moex-worker --hub wss://hub.local:8443 --ca cert.pem --cache "
        "~/.cache/moex\n"
        "exit: 0 left, 1 failed or refused, 2 wrong arguments");
    std::string hub, token_file, device, nickname, cache, ca;
    std::uint64_t budget_mb = 4096;
    bool insecure_tls = false, list_devices = false, version = false;
    app.add_option("--hub", hub, "ws://HOST:PORT, wss://HOST:PORT, or a join link");
    app.add_option("--token-file", token_file, "file that holds the join token");
    app.add_option("--device", device, "Vulkan device: index or part of its name [the first GPU]");
    app.add_option("--budget-mb", budget_mb,
                   "GPU memory to use, for weights and calls in flight, in MB")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 20));
    app.add_option("--cache", cache, "folder that keeps downloaded weights [none]");
    app.add_option("--nickname", nickname, "name shown to the host, at most 24 characters")
        ->check(CLI::Validator(
            [](std::string& name) {
                return name.size() <= 24 ? std::string() : std::string("at most 24 characters");
            },
            ""));
    app.add_option("--ca", ca, "certificate to trust besides the system's")
        ->check(CLI::ExistingFile);
    app.add_flag("--insecure-tls", insecure_tls, "do not check the hub's certificate");
    app.add_flag("--list-devices", list_devices, "print the Vulkan devices and stop");
    app.add_flag("--version", version, "print the version and stop");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        const int code = app.exit(error);
        return code == 0 ? 0 : 2;
    }
    if (version) {
        std::cout << "moex-worker 0.1.0\n";
        return 0;
    }
    if (list_devices) {
        const auto names = gpu::list_vulkan_devices();
        if (!names.ok()) {
            std::cerr << "moex-worker: " << names.error().message << '\n';
            return 1;
        }
        for (std::size_t i = 0; i < names->size(); ++i)
            std::cout << i << ": " << (*names)[i] << '\n';
        return 0;
    }
    if (hub.empty()) {
        std::cerr << "moex-worker: --hub is needed, e.g. --hub ws://127.0.0.1:8080 (see --help)\n";
        return 2;
    }
    auto url = native::parse_hub_url(hub);
    if (!url.ok()) {
        std::cerr << "moex-worker: " << url.error().message << '\n';
        return 2;
    }
    native::NativeOptions options;
    options.token = url->token;
    if (const char* from_environment = std::getenv("MOEX_TOKEN")) options.token = from_environment;
    if (!token_file.empty()) {
        std::ifstream in(token_file);
        if (!(in >> options.token)) {
            std::cerr << "moex-worker: " << token_file << " holds no token\n";
            return 1;
        }
    }
    options.fetch = {.hub = *url, .cache = cache, .ca_file = ca, .insecure_tls = insecure_tls};
    options.device = device;
    if (!cache.empty()) {
        std::error_code error;
        std::filesystem::create_directories(cache, error);
        if (error) {
            std::cerr << "moex-worker: cannot make " << cache << ": " << error.message() << '\n';
            return 1;
        }
    }
    WorkerOptions worker;
    worker.token = options.token;
    worker.nickname = nickname;
    worker.client = "native 0.1.0";
    worker.worker_key = random_key();
    worker.budget_bytes = budget_mb << 20;
    return native::run_native_worker(options, std::move(worker), StatusLog());
}
