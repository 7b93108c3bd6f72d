// The table itself: one line of truth per setting, in the order in which the help shows them.
#include "hub/options/options.h"

#include <arpa/inet.h>

#include <charconv>
#include <initializer_list>

#include "hub/dispatch/core/swarm_core.h"
#include "hub/options/options_shadow.h"

namespace moex {
namespace {

Status check_listen(std::string_view value) {
    if (auto parsed = parse_listen(value); !parsed.ok()) return parsed.error();
    return {};
}

Status check_hedge(std::string_view value) {
    if (auto parsed = parse_hedge_policy(value); !parsed.ok()) return parsed.error();
    return {};
}

Status check_placement(std::string_view value) {
    if (auto parsed = parse_placement(value); !parsed.ok()) return parsed.error();
    return {};
}

Status check_origin(std::string_view value) {
    const bool has_scheme = value.starts_with("http://") || value.starts_with("https://");
    const std::size_t host = value.find("//");
    if (!has_scheme || value.find('/', host + 2) != std::string_view::npos ||
        value.size() <= host + 2)
        return Error{ErrorCode::invalid_argument,
                     text("\"", value,
                          "\" is no origin; wanted scheme://host[:port] without a path, like "
                          "https://chat.example")};
    return {};
}

Status check_prefetch(std::string_view value) {
    std::uint32_t number = 0;
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool is_number = failure == std::errc() && end == value.data() + value.size();
    if (value == "off" || value == "on" || (is_number && number >= 1 && number <= 1024)) return {};
    if (wishes_shadow(value)) {
        const auto wish = parse_shadow_wish(value);
        return wish.ok() ? Status() : wish.error();
    }
    return Error{ErrorCode::invalid_argument,
                 text("wanted off, on, a number of experts from 1 to 1024 or shadow:DIR, found \"",
                      value, "\"")};
}

Status check_replay(std::string_view value) {
    const std::string_view share = value.substr(0, value.size() - (value.ends_with("+1") ? 2 : 0));
    double number = 0;
    const auto [end, failure] = std::from_chars(share.data(), share.data() + share.size(), number);
    if (value.empty() || (failure == std::errc() && end == share.data() + share.size() &&
                          number >= 0 && number <= 1))
        return {};
    return Error{
        ErrorCode::invalid_argument,
        text("wanted a share from 0 to 1, or one with +1 behind it, found \"", value, "\"")};
}

Status check_number_text(std::string_view value) {
    double number = 0;
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (failure == std::errc() && end == value.data() + value.size() && number >= 0 &&
        number <= 100)
        return {};
    return Error{ErrorCode::invalid_argument,
                 text("wanted a number from 0 to 100, found \"", value, "\"")};
}

Status check_seed(std::string_view value) {
    std::uint64_t number = 0;
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (failure == std::errc() && end == value.data() + value.size()) return {};
    return Error{ErrorCode::invalid_argument, text("wanted a whole number, found \"", value, "\"")};
}

Status check_group(std::string_view value) {
    if (value == "32" || value == "64" || value == "128") return {};
    return Error{ErrorCode::invalid_argument, text("wanted 32, 64 or 128, found \"", value, "\"")};
}

Status check_address(std::string_view value) {
    unsigned char bytes[16];
    const std::string address(value);
    if (inet_pton(AF_INET, address.c_str(), bytes) == 1 ||
        inet_pton(AF_INET6, address.c_str(), bytes) == 1)
        return {};
    return Error{ErrorCode::invalid_argument,
                 text("wanted an IP address like 127.0.0.1 or ::1, found \"", value, "\"")};
}

constexpr auto word = SettingKind::text;
constexpr auto number = SettingKind::number;
constexpr auto on_off = SettingKind::on_off;
constexpr auto flag = SettingKind::flag;
constexpr auto list = SettingKind::list;
constexpr auto secret = SettingKind::secret;
constexpr unsigned reads_text = command_eval | command_predict;
constexpr unsigned runs_model = command_serve | command_generate | reads_text;

const Setting model_settings[] = {
    {"model", word, runs_model | command_inspect, "DIR", "",
     "a package made by `moex-hub pack`; default: static/models/demo"},
};

// serve: who may come in, and how many of them.
const Setting door_settings[] = {
    {"listen", word, command_serve, "ADDR:PORT", "127.0.0.1:8080",
     "HTTP and WebSocket; port 0 takes a free one", 0, 0, "", check_listen},
    {"tls-cert", word, command_serve, "FILE", "",
     "certificate chain (PEM); with --tls-key the hub speaks HTTPS"},
    {"tls-key", word, command_serve, "FILE", "", "private key (PEM)"},
    {"insecure-http", flag, command_serve, "", "off",
     "allow an address beyond loopback without TLS (tabs then need a proxy: WebGPU wants a secure "
     "page)"},
    {"require-key", flag, command_serve, "", "off", "ask for an API key on loopback too"},
    {"any-model-name", flag, command_serve, "", "off",
     "answer requests for any model name with the one that is served"},
    {"give-model", on_off, command_serve, "on|off", "on",
     "browsers that may use the API may load the whole model and answer on their own device"},
    {"cors-origin", list, command_serve, "ORIGIN", "",
     "web origin that may call the API; repeatable", 0, 0, "", check_origin},
    {"host", list, command_serve | command_cert, "NAME", "",
     "further name of this hub (Host header, certificate); its certificate's names count too; "
     "repeatable"},
    {"trusted-proxy", list, command_serve, "ADDRESS", "",
     "reverse proxy whose X-Forwarded-For and -Proto count; keys are asked for then; repeatable", 0,
     0, "", check_address},
    {"static", word, command_serve, "DIR", "",
     "pages from a folder instead of the built-in ones (for working on them)"},
    {"workers-per-address", number, command_serve, "N", "16",
     "workers from one IPv4 address or IPv6 /64", 1, 100000},
    {"connections-max", number, command_serve, "N", "4096", "open connections", 8, 1000000},
    {"connections-per-address", number, command_serve, "N", "256",
     "of them from one IPv4 address or IPv6 /64", 1, 1000000},
    {"request-memory-mb", number, command_serve, "MB", "64",
     "request bodies that are being read, of all connections together; beyond it 503", 1, 1000000},
    {"access-log", word, command_serve, "FILE", "",
     "one line per answer, - for stdout: no bodies, no queries, of keys the public ids; SIGHUP "
     "opens "
     "it anew"},
    {"trace", word, command_serve, "FILE", "",
     "where the time of tokens goes, for chrome://tracing and ui.perfetto.dev: the engine's steps "
     "and layers, each worker's rounds; at most 1 GiB"},
    {"text-mb-per-minute", number, command_serve, "MB", "64",
     "request bodies that one address may have read as text, a quarter of it at once; a key twice "
     "as much; beyond it 429",
     1, 1000000},
    {"drain-s", number, command_serve, "S", "30", "after SIGTERM: how long streams may run on", 0,
     86400},
    {"test-routes", flag, command_serve, "", "off",
     "POST /api/test changes switches at run time (tests)", 0, 0, "", nullptr, true},
};

// serve: whose rights the hub has, and what it keeps.
const Setting state_settings[] = {
    {"user", word, command_serve, "NAME", "",
     "when root: the user to become once the port is bound"},
    {"state", word, command_serve | command_cert | command_key | command_ban, "DIR", "",
     "keys, counters, certificate (0700); default: $XDG_STATE_HOME/moex"},
    {"api-key-file", word, command_serve, "FILE", "",
     "a file whose first line is a further API key (environment: MOEX_API_KEY holds the key "
     "itself)"},
    {"admin-key-file", word, command_serve, "FILE", "",
     "the same for an admin key (MOEX_ADMIN_KEY)"},
    {"api-key", secret, command_serve, "", "", "a further API key"},
    {"admin-key", secret, command_serve, "", "", "a further admin key"},
    {"qr", flag, command_serve, "", "off",
     "print the join link's QR code even when stdout is no terminal"},
};

// serve: who computes.
const Setting swarm_settings[] = {
    {"backend", word, command_serve, "NAME", "swarm",
     "swarm: tabs and workers compute experts; local: this machine alone, as always with a dense "
     "model",
     0, 0, "swarm|local"},
    {"local-fallback", on_off, command_serve, "on|off", "on",
     "compute a call here when no worker answers in time"},
    {"check-answers", on_off, command_serve, "on|off", "on",
     "compute answers of contributors again: all of who is new, a share of who has a record; bans "
     "who lies (wants the experts' weights here)"},
    {"replicas", number, command_serve, "R", "2", "workers that hold each expert", 1, 64},
    {"hot-copies", number, command_serve, "P", "2",
     "so many experts in 100, those that are asked for most or will be soon, have one more copy "
     "than --replicas where workers have room for it; 0: none",
     0, 100},
    {"placement", word, command_serve, "RULE", "fan-out",
     "which workers hold an expert: fan-out, few of them a layer; hash, each expert by itself; "
     "\"groups N\": N groups of workers take layers in turn, so that one loads experts on demand "
     "while others compute (hints lead by N layers then)",
     0, 0, "", check_placement},
    {"hedge", word, command_serve, "POLICY", "delayed",
     "delayed: a second worker is asked when the first takes longer than 96 of 100 do, within 5 % "
     "and 5/s; \"fixed H\": H copies of each call at once; adaptive: two while the swarm is slow; "
     "off",
     0, 0, "", check_hedge},
    {"late-calls-max", number, command_serve, "N", "0",
     "a request may ask (moex.late_ms, late_max) that up to N expert calls of its answer are not "
     "waited for beyond a time, default vectors in their place: a lossy way; 0: none may",
     0, 1000000},
    {"experts", word, command_serve, "WAY", "exact",
     "of answers whose request does not say (moex.experts): exact, or a lossy way. speculative, or "
     "early:1, lets every second layer's calls leave before the last answers are in, default "
     "vectors in their place: 5 of 8 round trips of the demo, nothing won with --backend local; "
     "next-gate, quasi-hidden, estimator and hybrid name a layer's experts one layer before "
     "(+weights: weighted by its router; :N: N, among which its router chooses), so that who loads "
     "them begins then; router-free: as estimator, without routers"},
    {"prefetch", word, command_serve, "off|on|N|shadow:DIR", "off",
     "tell workers that hold more experts than lie in their memory which of them the next layer "
     "may ask for; N a token and layer, on: as many as a token asks for; "
     "shadow:DIR: as a shadow of the model (pack --shadow) says, which runs ahead on cores that "
     "are free; shadow:DIR:N with N experts a token, shadow:served:N with N of the model's own; "
     "behind it ,token=T and ,kv=K: the model's token and its keys every so many tokens (1; 0: "
     "never), ,fetch=M: experts named a row and layer, ,ahead=0: it draws no token of its own",
     0, 0, "", check_prefetch},
    {"prefetch-by", word, command_serve, "NAME", "auto",
     "with --prefetch, who says what the next layer may ask for (`moex-hub predict` measures "
     "them): auto, the estimator, else quasi-hidden, else next-gate, by what the package has; "
     "with --gpu next-gate, as rows that quasi-hidden and estimator read stay there; not linear, "
     "which predict fits to a text: packages hold the estimator, which knows more",
     0, 0,
     "auto|estimator|quasi-hidden|next-gate|previous-token|lru|lfu|popularity|request-popularity|"
     "random"},
    {"prefetch-replay", word, command_serve, "RECALL", "",
     "hints of a text that was decoded before are this share right; RECALL+1: those of the next "
     "token's first layers come before it, too, as a shadow's do that is a token ahead (benches)",
     0, 0, "", check_replay, true},
    {"deterministic", flag, command_serve | command_generate | reads_text, "", "off",
     "same text whatever the workers: fixed rounding and order of sums"},
    {"wire-dtype", word, command_serve | command_generate | reads_text, "DTYPE", "f16",
     "activations on the wire", 0, 0, "f16|bf16|int8|f32"},
    {"wire-x", word, command_serve, "DTYPE", "int8",
     "rows on their way to a worker: int8, half of f16, rounded here with a scale a row, where the "
     "worker takes it, answers are f16, and without --deterministic; wire: as --wire-dtype",
     0, 0, "int8|wire"},
    {"queue-depth", number, command_serve, "N", "4", "groups in flight per worker", 1, 64},
    {"micro-batches", word, command_serve, "auto|N", "auto",
     "a step's rows are cut into N parts, up to 4: while contributors compute a layer of one, this "
     "machine computes the next one's; auto: as many as steps are fastest with, measured as they "
     "run, up to --queue-depth; the text is the same",
     0, 0, "auto|1|2|3|4"},
    {"lz4", flag, command_serve, "", "off", "compress frames where it pays"},
    {"timeout-ms", number, command_serve, "MS", "500",
     "an attempt at one worker; adaptive below it", 1, 600000},
    {"round-deadline-s", number, command_serve, "S", "10",
     "one layer without an answer and without local fallback ends the request", 1, 3600},
    {"holder-wait-s", number, command_serve, "S", "8",
     "without local fallback: wait for an expert that a worker held or loaded a minute ago", 0,
     3600},
    {"holder-wait-unseen-s", number, command_serve, "S", "2",
     "the same for an expert that nobody held: then the request ends", 0, 3600},
};

const Setting engine_settings[] = {
    {"threads", number, runs_model | command_pack | command_synth, "N", "0",
     "compute threads; 0: one per core, of which serve leaves an eighth to connections", 0, 1024},
    {"arithmetic", word, runs_model, "MODE", "auto",
     "of this machine's matrices: exact (f32); int8 (8-bit activations and hub weights, about "
     "twice "
     "as fast); auto: int8 for INT4 experts, exact for others and with --deterministic",
     0, 0, "auto|exact|int8"},
    {"hub-dtype", word, runs_model | command_pack | command_synth, "DTYPE", "auto",
     "of attention and dense matrices in int8 arithmetic: int8, int6, or int4 (fewer bytes a "
     "token, less exact; the LM head has 6 bits then, too); auto: as the package has them, int6 "
     "where they are bf16. Of pack and synth: what the package holds, never int6; auto: bf16",
     0, 0, "auto|bf16|int8|int6|int4"},
    {"gpu", word, command_serve | command_generate, "auto|off|NAME", "off",
     "on a GPU of this machine, through Vulkan: attention, routers and LM head; with generate and "
     "with --backend local the experts, too, unless --deterministic. auto takes a real one and "
     "stays on the processor where there is none; NAME is an index or part of a device's name "
     "(llvmpipe is software). Keys and values lie there: --kv-mb, or what fits"},
    {"gpu-mb", number, command_serve, "MB", "0", "most of the GPU's memory; 0: what is free", 0,
     10000000},
    {"gpu-awake", word, command_serve, "auto|off", "auto",
     "with --gpu: it goes on computing while it waits for contributors, so that its clock stays up "
     "(three times as fast a layer on an H200); auto: while nobody else holds memory on it, "
     "and not on battery",
     0, 0, "auto|off"},
    {"spin", word, command_serve, "auto|on|off", "auto",
     "threads that wait for contributors look for up to a millisecond before they sleep, as long "
     "as waits are that short; auto: with --gpu, on eight cores or more",
     0, 0, "auto|on|off"},
    {"net-threads", number, command_serve, "N", "2", "threads for connections", 1, 64},
    {"sequences-max", number, command_serve, "N", "16", "generations that run at once", 1, 4096},
    {"queue-max", number, command_serve, "N", "64", "generations that wait; beyond it 429", 1,
     100000},
    {"kv-mb", number, runs_model, "MB", "0",
     "most memory for the KV cache; 0: a quarter of what is free at start", 0, 10000000},
    {"kv-dtype", word, runs_model, "DTYPE", "auto",
     "of the KV cache: f32; f16, half of its bytes; int8, a bit more than a quarter; auto: f32 in "
     "exact arithmetic, else f16",
     0, 0, "auto|f32|f16|int8"},
    {"prefix-cache", on_off, command_serve, "on|off", "on",
     "keep what was computed of a prompt for the same client's next one, within --kv-mb"},
    {"noise-prompts", flag, command_serve, "", "off",
     "of prompts only the last row is computed, keys and values before it are noise (benches)", 0,
     0, "", nullptr, true},
    {"step-stretch", SettingKind::real, command_serve, "X", "2",
     "while a prompt is read, a decode step lasts about X times as long at most; more: prompts are "
     "read faster, answers beside them stall",
     1.1, 1000000},
    {"context", number, command_serve | command_generate | command_synth, "TOKENS", "0",
     "longest prompt plus answer; 0: the model's own", 0, 10000000},
    {"max-tokens-default", number, command_serve, "N", "0",
     "answer length where a request names none; 0: as far as the context reaches", 0, 10000000},
    {"log-level", word, runs_model, "LEVEL", "info", "debug, info, warn or error; to stderr", 0, 0,
     "debug|info|warn|error"},
    {"log-json", flag, runs_model, "", "off",
     "one JSON object per log line, in the access log with each request's id"},
};

const Setting generate_settings[] = {
    {"max-tokens", number, command_generate, "N", "128", "tokens to generate at most", 1, 10000000},
    {"temperature", word, command_generate, "T", "", "0 is greedy; default: the package's", 0, 0,
     "", check_number_text},
    {"top-p", word, command_generate, "P", "", "nucleus; default: the package's", 0, 0, "",
     check_number_text},
    {"seed", word, command_generate | command_synth | command_predict, "N", "",
     "of the sampler, the weights, the guesses or the training; default: random for generate, "
     "otherwise 1",
     0, 0, "", check_seed},
};

const Setting eval_settings[] = {
    {"window", number, reads_text, "N", "512", "tokens of one window", 2, 10000000},
    {"windows", number, reads_text, "N", "0", "windows to read; 0: all whole ones", 0, 10000000},
    {"calibrate-tokens", number, command_predict | command_pack, "N", "65536",
     "most tokens of the text to calibrate with", 2, 1000000000},
};

// pack and synth; the commands that take long.
const Setting pack_settings[] = {
    {"expert-dtype", word, command_pack | command_synth, "DTYPE", "int4",
     "how experts are stored; bf16 and f32 only run locally", 0, 0, "int4|bf16|f32"},
    {"group", word, command_pack | command_synth, "N", "128", "largest INT4 group: 32, 64 or 128",
     0, 0, "", check_group},
    {"name", word, command_pack | command_synth, "NAME", "",
     "the model's id in the API; default: the folder's name"},
    {"hub-f32", flag, command_pack, "", "off", "keep f32 tensors of the hub as f32 (goldens)"},
    {"progress", flag, command_pack | command_synth | command_verify | reads_text, "", "off",
     "a line per tenth of the work on stderr where it is no terminal"},
};

}  // namespace

std::span<const Setting> setting_table() {
    static const std::vector<Setting> table = [] {
        std::vector<Setting> all;
        for (const std::span<const Setting> group : std::initializer_list<std::span<const Setting>>{
                 model_settings, door_settings, state_settings, swarm_settings, engine_settings,
                 generate_settings, eval_settings, pack_settings})
            all.insert(all.end(), group.begin(), group.end());
        return all;
    }();
    return table;
}

}  // namespace moex
