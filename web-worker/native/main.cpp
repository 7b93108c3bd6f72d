// moex-worker: a headless expert worker on a Vulkan GPU or on the processor, for machines without a
// browser and for tests.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <span>
#include <thread>
#include <vector>

#include "web-worker/gpu/vulkan/vulkan_device.h"
#include "web-worker/native/native_platform.h"
#include "web-worker/native/worker_key.h"
#include "web-worker/spans/span_worker.h"

namespace {

using namespace moex;

enum ExitCode { left = 0, failed = 1, wrong_arguments = 2 };

// Makes an option accept one of `words`, each of which names an enumerator. CLI11's own transformer
// also accepts numbers, and prints them in the help.
template <class Enum>
CLI::Validator one_of(std::map<std::string, Enum> words) {
    return {[words = std::move(words)](std::string& word) -> std::string {
                const auto found = words.find(word);
                if (found != words.end()) {
                    word = std::to_string(static_cast<int>(found->second));
                    return {};
                }

                std::string wanted;
                for (const auto& [name, value] : words)
                    wanted += (wanted.empty() ? "" : ", ") + name;
                return "\"" + word + "\", want one of: " + wanted;
            },
            ""};
}

struct Arguments {
    std::vector<std::string> hubs;
    std::string hub_key, token_file, device, nickname, cache, ca_file, identity;
    std::string gpu_awake = "auto", spin = "auto";
    WorkerBackend backend = WorkerBackend::automatic;
    WorkerArithmetic arithmetic = WorkerArithmetic::int8;
    std::uint32_t threads = 0, workers = 1;
    std::uint64_t budget_mb = 4096, keep_mb = 0, host_mb = 256, cache_mb = 0;
    EvictionPolicy eviction = EvictionPolicy::lru;
    std::uint32_t power_percent = power_percent_max;
    bool show_nickname = false, insecure_tls = false, list_devices = false, version = false;
};

int complain(int exit_code, std::string_view sentence) {
    std::cerr << "moex-worker: " << sentence << '\n';
    return exit_code;
}

// Declares the command-line options that choose the computing hardware.
void declare_machine(CLI::App& app, Arguments& arguments) {
    app.add_option(
           "--backend", arguments.backend,
           "gpu, cpu (this machine's processor), or auto: a GPU where there is one that is no "
           "software driver, else the processor [auto; gpu with --device]")
        ->type_name("auto|gpu|cpu")
        ->transform(one_of<WorkerBackend>({{"auto", WorkerBackend::automatic},
                                           {"gpu", WorkerBackend::gpu},
                                           {"cpu", WorkerBackend::cpu}}));
    app.add_option("--device", arguments.device,
                   "Vulkan device: index or part of its name [the first GPU]");
    app.add_option("--gpu-awake", arguments.gpu_awake,
                   "keep-alive work on the GPU between calls that follow each other, so that its "
                   "clock stays up; auto: while no other process holds memory on it, and not on "
                   "battery [auto]")
        ->check(CLI::IsMember({"auto", "off"}));
    app.add_option("--spin", arguments.spin,
                   "poll for the next call for up to a millisecond before sleeping, while calls "
                   "arrive that fast; auto: with a GPU, on four cores or more [auto]")
        ->check(CLI::IsMember({"auto", "on", "off"}));
    app.add_option("--threads", arguments.threads,
                   "threads of the processor, with --backend cpu [one per core]")
        ->check(CLI::Range(1, 1024));
    app.add_option("--arithmetic", arguments.arithmetic,
                   "arithmetic of the processor: int8 (faster), or exact (f32 sums, as a GPU "
                   "computes) [int8]")
        ->type_name("int8|exact")
        ->transform(one_of<WorkerArithmetic>(
            {{"int8", WorkerArithmetic::int8}, {"exact", WorkerArithmetic::exact}}));
}

void declare(CLI::App& app, Arguments& arguments) {
    app.footer(
        "The join token comes from MOEX_TOKEN, --token-file, or the fragment of a join link given "
        "as --hub.\nexample: MOEX_TOKEN=... moex-worker --hub wss://hub.local:8443 --ca cert.pem "
        "--cache ~/.cache/moex\nexit: 0 left, 1 failed or refused, 2 wrong arguments. SIGUSR1 "
        "prints what calls found in its memory");

    app.add_option("--hub", arguments.hubs,
                   "ws://HOST:PORT, wss://HOST:PORT, or a join link; several times for hubs of one "
                   "fleet: the worker joins another one when its own is gone")
        ->type_name("URL")
        ->allow_extra_args(false);
    app.add_option("--hub-key", arguments.hub_key,
                   "the key that the hub must have, as `moex-hub sign` prints it [the one that it "
                   "has first: the file known-hubs in the folder of --cache keeps it]");
    app.add_option("--token-file", arguments.token_file, "file that holds the join token");
    declare_machine(app, arguments);
    app.add_option("--budget-mb", arguments.budget_mb,
                   "memory to use there, for weights and calls in flight, in MB")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 20));
    app.add_option("--keep-mb", arguments.keep_mb,
                   "experts to hold, in MB, if that is more than the budget has room for: the "
                   "rest stays in the folder of --cache until it is requested [none beyond]")
        ->check(CLI::Range(1, 1 << 20));
    app.add_option("--host-mb", arguments.host_mb,
                   "with --keep-mb, memory of this machine, in MB, for experts that were read from "
                   "the folder: while they stay there, they are not read or verified again")
        ->capture_default_str()
        ->check(CLI::Range(0, 1 << 20));
    app.add_option("--evict", arguments.eviction,
                   "with --keep-mb, the expert that is evicted first: lru (least recently used), "
                   "lfu (least frequently used), cacheless (each expert after its use) [lru]")
        ->type_name("lru|lfu|cacheless")
        ->transform(one_of<EvictionPolicy>({{"lru", EvictionPolicy::lru},
                                            {"lfu", EvictionPolicy::lfu},
                                            {"cacheless", EvictionPolicy::cacheless}}));
    app.add_option("--cache", arguments.cache,
                   "folder that keeps downloaded weights and this worker's key [none]");
    app.add_option("--cache-mb", arguments.cache_mb,
                   "weights to keep in the folder of --cache, in MB: beyond it, weights of other "
                   "models are evicted first, then the least used [as many as the disk takes]")
        ->check(CLI::Range(1, 1 << 24));
    app.add_option("--workers", arguments.workers,
                   "number of workers in this process, each with a connection, a folder inside "
                   "that of --cache, and --budget-mb, --keep-mb, --host-mb and --cache-mb of its "
                   "own, all on one device: to try a swarm on one machine")
        ->capture_default_str()
        ->check(CLI::Range(1, 64));
    app.add_option("--nickname", arguments.nickname,
                   "name shown to the operator, at most 24 characters")
        ->check(CLI::Validator(
            [](std::string& name) {
                return name.size() <= 24 ? std::string() : std::string("at most 24 characters");
            },
            ""));
    app.add_option("--identity", arguments.identity,
                   "file with your Ed25519 key (PEM; created if it does not exist): the hub "
                   "attributes the work of all workers with this key to you [none]");
    app.add_flag("--show-nickname", arguments.show_nickname,
                 "let others who lend to this hub see the nickname beside that work");
    app.add_option("--power", arguments.power_percent,
                   "share of this worker's calls that the hub sends, in % [100]")
        ->check(CLI::Range(power_percent_min, power_percent_max));
    app.add_option("--ca", arguments.ca_file, "certificate to trust besides the system's")
        ->check(CLI::ExistingFile);

    app.add_flag("--insecure-tls", arguments.insecure_tls, "do not check the hub's certificate");
    app.add_flag("--list-devices", arguments.list_devices, "print the Vulkan devices and stop");
    app.add_flag("--version", arguments.version, "print the version and stop");
}

int list_devices() {
    const auto names = gpu::list_vulkan_devices();
    if (!names.ok()) return complain(failed, names.error().message);
    for (std::size_t i = 0; i < names->size(); ++i) std::cout << i << ": " << (*names)[i] << '\n';
    return left;
}

// Reads the token from the file, else from the environment, else from the first join link.
Result<std::string> join_token(const Arguments& arguments,
                               const std::vector<native::HubUrl>& hubs) {
    if (!arguments.token_file.empty()) {
        std::ifstream in(arguments.token_file);
        std::string token;
        if (in >> token) return token;
        return Error{ErrorCode::io_error, text(arguments.token_file, " holds no token")};
    }
    if (const char* from_environment = std::getenv("MOEX_TOKEN"))
        return std::string(from_environment);
    for (const native::HubUrl& hub : hubs)
        if (!hub.token.empty()) return hub.token;
    return std::string();
}

Result<std::vector<native::HubUrl>> hub_urls(const Arguments& arguments) {
    std::vector<native::HubUrl> hubs;
    for (const std::string& given : arguments.hubs) {
        MOEX_ASSIGN(url, native::parse_hub_url(given));
        hubs.push_back(std::move(url));
    }
    return hubs;
}

// Creates the folder if it does not exist, and returns the worker key in it. Without a folder the
// key is valid for this run only.
Result<std::string> open_cache(const std::filesystem::path& folder) {
    if (folder.empty()) return native::random_worker_key();
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error)
        return Error{ErrorCode::io_error,
                     text("cannot make ", folder.string(), ": ", error.message())};
    return native::kept_worker_key(folder);
}

void show_slots(const SlotCounters& slots) {
    std::cerr << "worker: asked=" << slots.asked << " resident=" << slots.resident
              << " late=" << slots.late << " loads=" << slots.loads << " load_ms=" << slots.load_ms
              << " by_gpu=" << slots.by_gpu << " prefetched=" << slots.prefetched
              << " wasted=" << slots.wasted << " brought=" << slots.brought
              << " expired=" << slots.expired << " ignored=" << slots.ignored << std::endl;
}

void add(SlotCounters& sum, const SlotCounters& one) {
    sum.asked += one.asked;
    sum.resident += one.resident;
    sum.late += one.late;
    sum.loads += one.loads;
    sum.load_ms += one.load_ms;
    sum.prefetched += one.prefetched;
    sum.wasted += one.wasted;
    sum.brought += one.brought;
    sum.by_gpu += one.by_gpu;
    sum.expired += one.expired;
    sum.ignored += one.ignored;
}

// Adds up the statuses of all workers of this process. The phase is `serving` if all of them serve;
// otherwise it is the phase of the first worker that does not.
WorkerStatus sum_of(std::span<const WorkerStatus> statuses) {
    const auto serves = [](const WorkerStatus& one) { return one.phase == WorkerPhase::serving; };
    const auto first = std::find_if_not(statuses.begin(), statuses.end(), serves);
    WorkerStatus all = first == statuses.end() ? statuses.front() : *first;
    all.units_ready = all.units_resident = 0;
    all.bytes_downloaded = all.groups_answered = 0;
    all.slots = {};
    for (const WorkerStatus& one : statuses) {
        all.units_ready += one.units_ready;
        all.units_resident += one.units_resident;
        all.bytes_downloaded += one.bytes_downloaded;
        all.groups_answered += one.groups_answered;
        add(all.slots, one.slots);
    }
    return all;
}

// Logs one line per change of phase, and one when the worker serves: scripts wait for "serving
// units=". Logs the times of rounds after 1000 rounds, and again whenever the number of rounds has
// doubled.
class StatusLog {
  public:
    void operator()(const WorkerStatus& status) {
        if (status.groups_answered >= next_figures_) {
            next_figures_ = 2 * status.groups_answered;
            std::cerr << "worker: rounds=" << status.groups_answered
                      << " round_ms_p50=" << status.round_ms_p50
                      << " round_ms_p99=" << status.round_ms_p99
                      << " gpu_us_p50=" << status.gpu_us_p50 << std::endl;
        }
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
                      << " self_test_nrmse=" << status.self_test_nrmse
                      << " resident=" << status.units_resident << std::endl;
            return;
        }
        std::cerr << "worker: " << worker_phase_name(status.phase)
                  << (status.detail.empty() ? "" : ": ") << status.detail << std::endl;
    }

  private:
    WorkerPhase last_phase_ = WorkerPhase::stopped;
    std::string last_detail_;
    std::uint32_t last_units_ = 0;
    std::uint64_t next_figures_ = 1000;
};

bool spins(const Arguments& arguments) {
    return arguments.spin == "on" ||
           (arguments.spin == "auto" && arguments.backend != WorkerBackend::cpu &&
            std::thread::hardware_concurrency() >= 4);
}

WorkerOptions options_of(const Arguments& arguments, const std::string& token,
                         const std::string& worker_key) {
    WorkerOptions worker;
    worker.token = token;
    worker.power_percent = arguments.power_percent;
    worker.nickname = arguments.nickname;
    worker.client = "native " MOEX_VERSION;
    worker.worker_key = worker_key;
    worker.budget_bytes = arguments.budget_mb << 20;
    worker.keep_bytes = arguments.keep_mb << 20;
    worker.eviction = arguments.eviction;
    worker.backend = arguments.device.empty() ? arguments.backend : WorkerBackend::gpu;
    worker.arithmetic = arguments.arithmetic;
    worker.threads = arguments.threads;
    worker.make_spans = make_span_worker;
    return worker;
}

int serve(const Arguments& arguments) {
    if (arguments.backend == WorkerBackend::cpu && !arguments.device.empty())
        return complain(wrong_arguments, "--device names a GPU, --backend cpu wants none");
    if (arguments.keep_mb > 0 && arguments.cache.empty())
        return complain(wrong_arguments,
                        "--keep-mb keeps experts in a folder: name one with --cache DIR");
    if (arguments.cache_mb > 0 && arguments.cache.empty())
        return complain(wrong_arguments, "--cache-mb limits a folder: name one with --cache DIR");
    if (arguments.hubs.empty())
        return complain(wrong_arguments,
                        "--hub is needed, e.g. --hub ws://127.0.0.1:8080 (see --help)");
    const auto hubs = hub_urls(arguments);
    if (!hubs.ok()) return complain(wrong_arguments, hubs.error().message);
    const auto token = join_token(arguments, *hubs);
    if (!token.ok()) return complain(failed, token.error().message);
    native::NativeOptions options{
        .hubs = *hubs,
        .ca_file = arguments.ca_file,
        .insecure_tls = arguments.insecure_tls,
        .cache_bytes = arguments.cache_mb << 20,
        .host_bytes = arguments.keep_mb > 0 ? arguments.host_mb << 20 : 0,
        .token = *token,
        .device = arguments.device,
        .software_gpu = arguments.backend == WorkerBackend::gpu || !arguments.device.empty()};
    if (!arguments.cache.empty())
        options.known_hubs = std::filesystem::path(arguments.cache) / "known-hubs";
    if (!arguments.hub_key.empty()) {
        const auto key = parse_public_key(arguments.hub_key);
        if (!key.ok()) return complain(wrong_arguments, text("--hub-key: ", key.error().message));
        options.hub_key = *key;
    }
    options.shows_nickname = arguments.show_nickname;
    options.stay_awake = arguments.gpu_awake == "auto";
    if (spins(arguments)) options.spin_max = std::chrono::milliseconds(1);
    options.on_asked = [](std::span<const WorkerStatus> now) { show_slots(sum_of(now).slots); };
    if (!arguments.identity.empty()) {
        auto identity = native::IdentityFile::open(arguments.identity);
        if (!identity.ok()) return complain(failed, identity.error().message);
        options.identity = std::make_shared<const native::IdentityFile>(std::move(*identity));
    }

    std::vector<native::NativeWorker> workers;
    for (std::uint32_t i = 0; i < arguments.workers; ++i) {
        std::filesystem::path cache = arguments.cache;
        if (arguments.workers > 1 && !cache.empty()) cache /= text("worker-", i);
        const auto worker_key = open_cache(cache);
        if (!worker_key.ok()) return complain(failed, worker_key.error().message);
        workers.push_back({cache, options_of(arguments, *token, *worker_key)});
    }
    std::vector<WorkerStatus> newest(arguments.workers);
    StatusLog log;
    const int exit_code = native::run_native_workers(
        options, std::move(workers), [&](std::size_t index, const WorkerStatus& status) {
            newest[index] = status;
            log(sum_of(newest));
        });
    // At the end, log the slot counters of all workers, if not every expert had a slot.
    if (const SlotCounters slots = sum_of(newest).slots; slots.asked > 0) show_slots(slots);
    return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{
        "Computes experts of a MoEx hub on this machine's GPU or processor, without a browser."};
    Arguments arguments;
    declare(app, arguments);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? left : wrong_arguments;
    }

    if (arguments.version) {
        std::cout << "moex-worker " MOEX_VERSION "\n";
        return left;
    }
    return arguments.list_devices ? list_devices() : serve(arguments);
}
