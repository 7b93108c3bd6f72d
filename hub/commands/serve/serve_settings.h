// The settings of `moex-hub serve` as typed values, in the groups of its help. They are read once
// from the table of settings (hub/options/options.h), which has checked each value. Values that
// contradict each other are refused here. This file owns types and contradictions; serve_options.h
// turns the settings into the options of the hub's parts.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hub/dispatch/placement/placement_rule.h"
#include "hub/dispatch/round/hedge_policy.h"
#include "hub/dispatch/round/reserve_rule.h"
#include "hub/engine/expert_backend.h"
#include "hub/options/options.h"

namespace moex {

struct KeySettings {
    bool required_on_loopback = false;
    std::string api_key, admin_key;  // the text of a key, from the environment or the file
    std::filesystem::path api_key_file, admin_key_file;
};

struct ConnectionLimits {
    std::uint32_t connections_max = 0, connections_per_address_max = 0;
    std::uint64_t request_memory_bytes_max = 0, text_bytes_per_minute = 0;
    std::uint32_t num_threads = 0;
    std::chrono::seconds drain_within{};
};

// "Address and keys"
struct AddressSettings {
    ListenAddress listen;
    std::filesystem::path tls_cert, tls_key;  // both or none
    bool allows_insecure_http = false;
    KeySettings keys;
    std::vector<std::string> hosts, cors_origins, trusted_proxies;
    std::string user;                        // user of the process; empty: does not change
    std::filesystem::path state_directory;   // folder for the hub's state; empty: default
    std::string store_url;                   // a store that several hubs share; empty: sqlite
    std::filesystem::path fleet_key_file;    // of the hubs of the store; empty: none
    std::filesystem::path static_directory;  // folder of pages; empty: those in the binary
    ConnectionLimits limits;
    bool always_prints_qr = false;
    bool has_test_routes = false;
};

struct GpuSettings {
    std::string device = "off";          // GPU: "off", "auto", an index or part of a name
    std::uint64_t memory_bytes_max = 0;  // GPU memory; 0: all that is free
    bool stays_awake = true;
    bool is_wanted() const { return device != "off"; }
};

// Pages of keys and values on disk.
struct PageSettings {
    std::optional<std::uint64_t> bytes_max;  // 0: none; empty: a default (kept_pages.h)
    std::chrono::seconds keep{};
    std::filesystem::path key_file;  // empty: a credential, or a key in the state folder
};

// The settings of the help's group "Model and memory". hub/commands/load_model.h reads those
// settings that other commands take too.
struct ModelSettings {
    GpuSettings gpu;
    std::uint64_t kv_bytes_max = 0;     // size of the KV cache; 0: a share of the free memory
    std::uint64_t state_bytes_max = 0;  // of it, for copies of recurrent states; 0: a quarter
    bool is_deterministic = false;
    std::uint32_t sequences_max = 0, queue_max = 0;
    std::uint32_t context_tokens = 0;      // context length; 0: that of the model
    std::uint32_t default_max_tokens = 0;  // length of an answer; 0: to the end of the context
    double step_stretch_max = 0;
    std::uint32_t micro_batches = 0;  // micro-batches of a step; 0: the number is measured
    bool drafts = true;               // speculative decoding
    // number of tokens to draft in each step; empty: the number is measured
    std::optional<std::uint32_t> draft_tokens;
    std::string draft_folder;  // a draft model or a shadow; empty: none
    bool caches_prefixes = true;
    PageSettings pages;
    bool has_noise_prompts = false;
    bool answers_any_model_name = false;
    bool gives_model = true;          // browsers may download the whole package
    std::string device_model_folder;  // the package for browsers; empty: the one that is served
};

enum class ServeBackend { swarm, local };
const char* serve_backend_name(ServeBackend backend);

// How expert answers are made for requests that do not choose a mode themselves.
enum class AnswerMode { exact, speculative, estimator };
const char* answer_mode_name(AnswerMode mode);

enum class SpinMode { automatic, on, off };

// Predictions of experts, sent as hints to workers that load experts on demand.
struct PrefetchSettings {
    bool is_on = false;
    std::uint32_t experts_per_row = 0;  // predicted experts; 0: as many as a token uses
    std::string predictor = "auto";     // predictor of experts: "auto", "next-gate" or "estimator"
    std::string shadow_folder;          // folder of the shadow; empty: no shadow runs
    std::string replayed_recall;        // --prefetch-replay for benches, such as "0.96+1"; or empty
};

struct WireSettings {
    ExpertRounding rounding;
    bool x_is_int8 = true;  // sends input rows as int8 to workers that accept int8
    std::uint32_t queue_depth = 0;
    bool lz4 = false;
};

struct WaitSettings {
    std::chrono::milliseconds attempt_max{};
    std::chrono::seconds round_deadline{}, holder{}, unseen_holder{};
    SpinMode spin = SpinMode::automatic;
};

// "Contributors"
struct ContributorSettings {
    ServeBackend backend = ServeBackend::swarm;
    bool has_local_fallback = true, checks_answers = true;
    std::uint32_t own_layers = 0;  // layers whose experts only this machine computes
    bool uses_spans = false;       // workers may compute layers whole
    UseWorkers use_workers = UseWorkers::automatic;
    std::uint32_t replicas = 0;
    std::uint32_t hot_percent = 0;  // share of the experts that get one more replica
    PlacementChoice placement;
    HedgePolicy hedge;
    AnswerMode experts = AnswerMode::exact;
    std::uint32_t late_calls_max = 0;
    PrefetchSettings prefetch;
    WireSettings wire;
    WaitSettings waits;
    std::uint32_t workers_per_address_max = 0;
};

// The settings of the help's group "Logs". set_log_of() (hub/commands/load_model.h) sets the log
// level.
struct LogSettings {
    bool is_json = false;
    std::filesystem::path access_log;  // file of the access log; empty: no log; "-": stdout
    std::filesystem::path trace;       // empty: none
};

struct ServeSettings {
    AddressSettings address;
    ModelSettings model;
    ContributorSettings contributors;
    LogSettings logs;
};

// Reads all settings of serve. The error invalid_argument names the settings that contradict each
// other and says which of them to leave out.
Result<ServeSettings> read_serve_settings(const Settings& settings);

}  // namespace moex
