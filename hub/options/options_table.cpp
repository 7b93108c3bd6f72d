// The table of all settings: one row per setting, in the order in which the help lists the
// settings.
#include <initializer_list>

#include "hub/options/options.h"
#include "hub/options/options_checks.h"

namespace moex {
namespace {

constexpr auto word = SettingKind::text;
constexpr auto number = SettingKind::number;
constexpr auto on_off = SettingKind::on_off;
constexpr auto flag = SettingKind::flag;
constexpr auto list = SettingKind::list;
constexpr auto secret = SettingKind::secret;
constexpr auto short_help = SettingShown::always;
constexpr auto all_help = SettingShown::help_all;
constexpr auto no_help = SettingShown::never;
constexpr unsigned serve = command_serve;
constexpr unsigned uses_state = command_serve | command_cert | command_key | command_ban |
                                command_backup | command_forget | command_sign;
constexpr unsigned uses_store = command_serve | command_key | command_ban | command_fleet |
                                command_front;
constexpr unsigned listens = command_serve | command_front;
constexpr unsigned reads_text = command_eval | command_predict;
constexpr unsigned runs_model = command_serve | command_generate | reads_text;
constexpr unsigned makes_package = command_pack | command_synth;

// Settings of the group "Address and keys": where the hub listens, which clients it serves, and how
// many clients.
const Setting address_settings[] = {
    {"listen", word, listens, short_help, "ADDR:PORT", "127.0.0.1:8080",
     "address to serve at; port 0 takes a free port", 0, 0, "", check_listen},
    {"tls-cert", word, listens, short_help, "FILE", "",
     "certificate chain (PEM); with --tls-key for HTTPS"},
    {"tls-key", word, listens, short_help, "FILE", "", "private key (PEM) of --tls-cert"},
    {"insecure-http", flag, listens, short_help, "", "off",
     "allow an address beyond loopback without TLS\n"
     "tabs then need a proxy that speaks TLS, because WebGPU works on secure pages only"},
    {"require-key", flag, serve, short_help, "", "off", "require an API key on loopback too"},
    {"api-key-file", word, serve, all_help, "FILE", "",
     "the first line is a further API key; or MOEX_API_KEY holds it"},
    {"admin-key-file", word, serve, all_help, "FILE", "",
     "the first line is a further admin key; or MOEX_ADMIN_KEY holds it"},
    {"api-key", secret, serve, all_help, "", "", "a further API key"},
    {"admin-key", secret, serve, all_help, "", "", "a further admin key"},
    {"host", list, serve | command_cert, short_help, "NAME", "",
     "further name of this hub; repeatable\n"
     "the Host header may carry it, and `cert` puts it into the certificate; the names of the "
     "hub's certificate are allowed too; behind a proxy, the first is the address in the links "
     "and may have a port and a path: hub.example:8443/moex"},
    {"cors-origin", list, serve, short_help, "ORIGIN", "",
     "web origin that may call the API; repeatable", 0, 0, "", check_origin},
    {"trusted-proxy", list, listens, short_help, "ADDRESS", "",
     "reverse proxy whose X-Forwarded-* headers count; repeatable\n"
     "the headers are X-Forwarded-For and X-Forwarded-Proto; API keys are then required on "
     "loopback too",
     0, 0, "", check_address},
    {"user", word, serve, short_help, "NAME", "",
     "when started as root: the user to become once the port is bound"},
    {"state", word, uses_state, short_help, "DIR", "",
     "keys, counters, certificate (0700); default: $XDG_STATE_HOME/moex"},
    {"store", word, uses_store, short_help, "URL", "",
     "PostgreSQL that hubs share: postgresql://HOST/DB\n"
     "it holds keys, bans, counts and the join token; "
     "the password comes from PGPASSFILE or PGPASSWORD; beyond this machine TLS verifies the host",
     0, 0, "", check_store},
    {"fleet-key", word, listens, all_help, "FILE", "",
     "key that the hubs of --store share: a stream goes on at another hub when its hub dies\n"
     "`moex-hub fleet key FILE` writes one; requests and tokens of running streams are stored "
     "encrypted with it, and hubs and fronts know each other by it"},
    {"hub", list, command_front, all_help, "URL", "",
     "a hub of the fleet, http://HOST:PORT; repeatable; or --store names them all"},
    {"static", word, serve, all_help, "DIR", "",
     "serve the pages from a folder instead of the built-in ones (for work on the pages)"},
    {"connections-max", number, listens, all_help, "N", "4096", "open connections", 8, 1000000},
    {"connections-per-address", number, serve, all_help, "N", "256",
     "open connections from one IPv4 address or IPv6 /64", 1, 1000000},
    {"request-memory-mb", number, listens, all_help, "MB", "64",
     "memory for request bodies, over all connections; beyond it 503\n"
     "a hub keeps a body until it is read, a front until it is answered",
     1, 1000000},
    {"text-mb-per-minute", number, serve, all_help, "MB", "64",
     "rate limit: request bodies that one address may send; beyond it 429\n"
     "a quarter of it may be sent at once; a key has twice the limit of an address",
     1, 1000000},
    {"net-threads", number, serve, all_help, "N", "2", "threads for connections", 1, 64},
    {"drain-s", number, serve, all_help, "S", "30",
     "after SIGTERM: the time that running streams have to finish", 0, 86400},
    {"qr", flag, serve, all_help, "", "off",
     "print the join link's QR code even when stdout is no terminal"},
    {"test-routes", flag, serve, no_help, "", "off",
     "POST /api/test changes switches at run time (tests)"},
};

// Settings of the group "Model and memory": what this machine computes, and with how much memory.
const Setting model_settings[] = {
    {"model", word, runs_model | command_inspect, short_help, "DIR", "",
     "a package made by `moex-hub pack`; default: static/models/demo"},
    {"context", number, command_serve | command_generate | command_synth, short_help, "TOKENS", "0",
     "longest prompt plus answer; 0: the model's own", 0, 10000000},
    {"sequences-max", number, serve, short_help, "N", "16", "generations that run at once", 1,
     4096},
    {"queue-max", number, serve, all_help, "N", "64", "generations that wait; beyond it 429", 1,
     100000},
    {"kv-mb", number, runs_model, short_help, "MB", "0",
     "memory for the KV cache; 0: a quarter of what is free at start", 0, 10000000},
    {"state-mb", number, serve, all_help, "MB", "0",
     "part of --kv-mb for copies of recurrent states, from which prompts that begin alike go on "
     "(Qwen3-Next, Qwen3.5, Qwen3.6); 0: a quarter",
     0, 10000000},
    {"kv-dtype", word, runs_model, all_help, "DTYPE", "auto",
     "data type of the KV cache\n"
     "f16 has half of the bytes of f32, int8 a bit more than a quarter\n"
     "auto: f32 with exact arithmetic, else f16",
     0, 0, "auto|f32|f16|int8"},
    {"prefix-cache", on_off, serve, all_help, "on|off", "on",
     "keep the KV pages of a prompt for the same client's next prompt, within --kv-mb"},
    {"kv-disk-mb", word, serve, all_help, "MB|auto", "auto",
     "keep the KV pages of prompts and answers on disk, encrypted, for the same client's next "
     "prompt, also after a restart; 0: none\n"
     "auto: a tenth of the free disk, at most 8192, if the hub listens on loopback and trusts no "
     "proxy; otherwise none\n"
     "`moex-hub forget` deletes them; a request with \"moex\": {\"store\": false} leaves none",
     0, 0, "", check_disk_mb},
    {"kv-disk-hours", number, serve, all_help, "H", "24",
     "pages on disk are deleted after this time", 1, 8760},
    {"kv-key-file", word, serve, all_help, "FILE", "",
     "the first line encrypts the pages on disk: 64 hexadecimal digits\n"
     "default: the systemd credential moex-kv-key, or the file kv-key in the state folder, which "
     "is made; a key in the state folder protects nothing if the whole folder is copied"},
    {"gpu", word, command_serve | command_generate, short_help, "auto|off|NAME", "off",
     "attention, routers and LM head on a GPU here, through Vulkan\n"
     "with generate, and with --backend local, it also computes the experts, unless "
     "--deterministic is set\n"
     "auto takes a real GPU, and the processor where there is none\n"
     "NAME is an index or part of a device's name (llvmpipe is software)\n"
     "keys and values are stored on the GPU: --kv-mb, or 8192 tokens for each of --sequences-max "
     "within a quarter of the free memory\n"
     "a contributor on the same GPU works, and both are slower, because they take turns"},
    {"gpu-mb", number, serve, all_help, "MB", "0",
     "most memory of the GPU that is used; 0: what is free", 0, 10000000},
    {"gpu-awake", word, serve, all_help, "auto|off", "auto",
     "keep-alive work on the GPU while it waits for contributors, so that its clock stays up\n"
     "a layer on an H200 is three times as fast with it\n"
     "auto: while no other program holds memory of the GPU, and not on battery",
     0, 0, "auto|off"},
    {"give-model", on_off, serve, short_help, "on|off", "on",
     "browsers may load the whole model and answer on their own device\n"
     "a browser needs the right to use the API"},
    {"device-model", word, serve, all_help, "DIR", "",
     "a smaller model for browsers that answer on their own device; default: the model that is "
     "served\n"
     "the chat page can then show the device's answer at once and offer the hub's in its place"},
    {"any-model-name", flag, serve, all_help, "", "off",
     "answer requests for any model name with the model that is served"},
    {"max-tokens-default", number, serve, all_help, "N", "0",
     "answer length where a request gives none; 0: up to the end of the context", 0, 10000000},
    {"deterministic", flag, runs_model, short_help, "", "off",
     "same text whichever workers answer\nrounding and order of sums are then fixed"},
    {"threads", number, runs_model | makes_package, all_help, "N", "0",
     "compute threads; 0: one per core that it may use\nserve then leaves an eighth of the cores "
     "to connections",
     0, 1024},
    {"arithmetic", word, runs_model, all_help, "MODE", "auto",
     "arithmetic of this machine's matrices\n"
     "exact: f32\n"
     "int8: 8-bit activations and hub weights, about twice as fast\n"
     "auto: int8 for INT4 experts, exact for others and with --deterministic",
     0, 0, "auto|exact|int8"},
    {"hub-dtype", word, runs_model | makes_package, all_help, "DTYPE", "auto",
     "data type of attention and dense matrices in int8 arithmetic\n"
     "int4 has the fewest bytes a token and is the least exact; the LM head then has 6 bits\n"
     "auto: as the package has them, int6 where they are bf16\n"
     "of pack and synth: what the package holds, never int6; auto: bf16, and f32 where bf16 would "
     "lose bits of the checkpoint",
     0, 0, "auto|bf16|int8|int6|int4"},
    {"step-stretch", SettingKind::real, serve, all_help, "X", "2",
     "a decode step lasts at most about X times as long while a prompt is read\n"
     "with a larger X prompts are read faster and answers beside them stall",
     1.1, 1000000},
    {"micro-batches", word, serve, all_help, "auto|N", "auto",
     "cut a step's rows into N parts, up to 4\n"
     "this machine computes one part while contributors compute a layer of another part; the text "
     "is the same\n"
     "auto: the number that makes steps fastest, measured while they run, up to --queue-depth",
     0, 0, "auto|1|2|3|4"},
    {"speculative", word, serve, all_help, "off|auto|N", "auto",
     "speculative decoding: compute drafted tokens beside the last one of a text\n"
     "the text is the same; a draft saves the round trips of the tokens that it has right\n"
     "auto: as many as give the most tokens a second, measured while they run; N: always N, up to "
     "16",
     0, 0, "", check_speculative},
    {"draft", word, serve, all_help, "DIR", "",
     "a smaller model that drafts tokens, beside what the text itself repeats\n"
     "a package with the same vocabulary, or a shadow of the model (`pack --shadow`)"},
    {"noise-prompts", flag, serve, no_help, "", "off",
     "compute only the last row of a prompt; keys and values before it are noise (benches)"},
};

// Settings of the group "Contributors": what workers compute, and what the hub does when workers
// are slow, wrong or absent.
const Setting contributor_settings[] = {
    {"backend", word, serve, short_help, "swarm|local", "swarm",
     "swarm: tabs and workers compute experts; local: this machine\n"
     "a dense model is always computed by this machine alone",
     0, 0, "swarm|local"},
    {"local-fallback", on_off, serve, short_help, "on|off", "on",
     "compute a call here when no worker answers in time"},
    {"own-layers", number, serve, all_help, "N", "0",
     "layers whose experts only this machine computes: the first N - 1 and the last one\n"
     "with --local-fallback off this machine needs memory for these experts alone, and "
     "contributors compute the others",
     0, 65535},
    {"use-workers", word, serve, all_help, "auto|always", "auto",
     "when workers are asked, if this machine can compute the experts itself\n"
     "auto: a worker is asked if it is measured to answer before this machine would be done; the "
     "others are in reserve\n"
     "always: workers compute all that they hold",
     0, 0, "auto|always"},
    {"spans", word, serve, all_help, "auto|off", "off",
     "workers with memory for it compute several consecutive layers whole, so that a token takes "
     "one "
     "round trip for them\n"
     "auto: where that is measured to be faster; the first two layers and the last one stay here\n"
     "such a worker sees rows and keys of its layers; not with --deterministic or --give-model off",
     0, 0, "auto|off"},
    {"check-answers", on_off, serve, short_help, "on|off", "on",
     "compute answers again to find false ones; bans their workers\n"
     "all answers of a new worker are checked, and a share of those of a worker with a record\n"
     "needs the experts' weights on this machine"},
    {"replicas", number, serve, short_help, "R", "2", "workers that hold each expert", 1, 64},
    {"experts", word, serve, short_help, "MODE", "exact",
     "exact, or a lossy mode: speculative or estimator\n"
     "the mode of answers whose request does not choose one (moex.experts)\n"
     "speculative: the calls of every second layer leave before the answers of the layer before "
     "have arrived, with default vectors in their place; the demo then has 5 of 8 round trips\n"
     "estimator: a small trained network chooses a layer's experts one layer before, so that "
     "workers which load experts on demand begin earlier; the package needs `train-estimator`",
     0, 0, "exact|speculative|estimator", check_experts},
    {"prefetch", word, serve, short_help, "MODE", "off",
     "off, on, N or shadow:DIR: predict experts that workers will load\n"
     "for workers that hold more experts than fit into their memory\n"
     "N: experts that are predicted for a token and layer; on: as many as a token uses\n"
     "shadow:DIR: a quantized draft of the model (`pack --shadow`) runs ahead of it on free cores "
     "and predicts which experts come next",
     0, 0, "", check_prefetch},
    {"prefetch-by", word, serve, all_help, "NAME", "auto",
     "the predictor of --prefetch\n"
     "next-gate: the next layer's router reads this layer's input\n"
     "quasi-hidden: the same with default vectors for the answers in flight\n"
     "estimator: a small trained network; it does not work with --gpu\n"
     "auto: the best one that the package has the files for; with --gpu next-gate",
     0, 0, "auto|next-gate|quasi-hidden|estimator", check_prefetch_by},
    {"prefetch-replay", word, serve, no_help, "RECALL", "",
     "replay the experts of a text that was decoded before; this share of them is right. With +1 "
     "the first layers of the next token are predicted too, as a shadow does that is a token ahead "
     "(benches)",
     0, 0, "", check_replay},
    {"placement", word, serve, all_help, "RULE", "fan-out",
     "rule that chooses the workers which hold an expert\n"
     "fan-out: few workers a layer\n"
     "hash: each expert by itself\n"
     "\"groups N\": N groups of workers compute the layers in rotation, so that one group loads "
     "experts on demand while others compute; predictions then lead by N layers",
     0, 0, "", check_placement},
    {"hot-copies", number, serve, all_help, "P", "2",
     "percent of the experts that get one copy more than --replicas; 0: none\n"
     "these are the experts that are requested most or will be soon, where workers have room",
     0, 100},
    {"hedge", word, serve, all_help, "POLICY", "delayed",
     "send a call to a second worker\n"
     "delayed: when the first takes longer than 96 of 100 calls do, within 5 % of all calls and 5 "
     "a second\n"
     "\"fixed H\": H copies of each call at once\n"
     "adaptive: two copies while the swarm is slow\n"
     "off: never",
     0, 0, "", check_hedge},
    {"timeout-ms", number, serve, all_help, "MS", "500",
     "longest time for one attempt at a worker; the program adapts the timeout below it", 1,
     600000},
    {"round-deadline-s", number, serve, all_help, "S", "10",
     "a layer without an answer and without local fallback ends the request after this time", 1,
     3600},
    {"holder-wait-s", number, serve, all_help, "S", "8",
     "without local fallback: wait for an expert that a worker held or loaded a minute ago", 0,
     3600},
    {"holder-wait-unseen-s", number, serve, all_help, "S", "2",
     "the same for an expert that no worker held; the request then ends", 0, 3600},
    {"late-calls-max", number, serve, all_help, "N", "0",
     "expert calls of an answer that a request may leave out (lossy); 0: none\n"
     "the request gives a time limit (moex.late_ms, late_max); default vectors replace the answers "
     "that are later",
     0, 1000000},
    {"workers-per-address", number, serve, all_help, "N", "16",
     "workers from one IPv4 address or IPv6 /64", 1, 100000},
    {"wire-dtype", word, command_serve | command_generate | reads_text, all_help, "DTYPE", "f16",
     "data type of activations in frames", 0, 0, "f16|bf16|int8|f32"},
    {"wire-x", word, serve, all_help, "int8|wire", "int8",
     "data type of the rows that are sent to a worker\n"
     "int8: half of the bytes of f16, with one scale a row, where the worker accepts it, answers "
     "are f16, and without --deterministic\n"
     "wire: as --wire-dtype",
     0, 0, "int8|wire"},
    {"queue-depth", number, serve, all_help, "N", "4", "groups in flight per worker", 1, 64},
    {"lz4", flag, serve, all_help, "", "off", "compress frames where it makes them smaller"},
    {"spin", word, serve, all_help, "auto|on|off", "auto",
     "threads that wait for contributors spin for up to a millisecond before they sleep\n"
     "they spin as long as waits are that short\n"
     "auto: with --gpu, on eight cores or more",
     0, 0, "auto|on|off"},
};

const Setting log_settings[] = {
    {"log-level", word, runs_model, short_help, "LEVEL", "info",
     "debug, info, warn or error; to stderr", 0, 0, "debug|info|warn|error"},
    {"log-json", flag, runs_model, short_help, "", "off",
     "one JSON object per log line\nin the access log it has each request's id"},
    {"access-log", word, serve, short_help, "FILE", "",
     "one line per answer, - for stdout\n"
     "it has no bodies and no queries, and of keys the public ids; SIGHUP opens the file again"},
    {"trace", word, serve, all_help, "FILE", "",
     "spans of every token for chrome://tracing and ui.perfetto.dev; at most 1 GiB\n"
     "the engine's steps and layers, and the rounds of each worker"},
};

const Setting generate_settings[] = {
    {"max-tokens", number, command_generate, all_help, "N", "128",
     "tokens to generate at most\n"
     "of chat, where it is not given: 4096, or what the hub of --url allows",
     1, 10000000},
    {"temperature", word, command_generate, all_help, "T", "",
     "0 is greedy; default: the package's", 0, 0, "", check_number_text},
    {"top-p", word, command_generate, all_help, "P", "", "nucleus; default: the package's", 0, 0,
     "", check_number_text},
    {"seed", word, command_generate | command_synth | command_predict, all_help, "N", "",
     "seed of the sampler, the weights, the guesses or the training\n"
     "default: random for generate, otherwise 1",
     0, 0, "", check_seed},
};

const Setting eval_settings[] = {
    {"window", number, reads_text, all_help, "N", "512", "tokens of one window", 2, 10000000},
    {"windows", number, reads_text, all_help, "N", "0", "windows to read; 0: all whole ones", 0,
     10000000},
    {"calibrate-tokens", number, command_predict | command_pack, all_help, "N", "65536",
     "most tokens of the text to calibrate with", 2, 1000000000},
};

// Settings of pull, models and rm.
const Setting pull_settings[] = {
    {"models-dir", word, command_pull | command_models, all_help, "DIR", "",
     "folder of pulled checkpoints and packages; default: $XDG_DATA_HOME/moex/models"},
    {"endpoint", word, command_pull, all_help, "URL", "https://huggingface.co",
     "server of the repository; the variable HF_TOKEN holds its token\n"
     "the token goes to this server alone, never to a host that it redirects to"},
    {"range-kb", number, command_pull, all_help, "KB", "65536",
     "part of a file that one connection fetches", 16, 1u << 30},
    {"stall-s", number, command_pull, all_help, "S", "30",
     "a connection without a byte for this time is tried again", 1, 3600},
};

// Settings of pack and synth, and of other commands that take long.
const Setting pack_settings[] = {
    {"expert-dtype", word, makes_package, all_help, "DTYPE", "auto",
     "data type of the stored experts; bf16 and f32 only run locally\n"
     "auto: mxfp4 where the checkpoint has its experts in it, else int4",
     0, 0, "auto|int4|mxfp4|bf16|f32"},
    {"group", word, makes_package, all_help, "N", "128",
     "largest INT4 group: 32, 64, 128 or auto\n"
     "auto (pack alone): the smallest group at the bytes of a package with groups of 128;\n"
     "--hub-dtype auto may then be int8 to make room",
     0, 0, "", check_group},
    {"name", word, makes_package, all_help, "NAME", "",
     "the model's id in the API; default: the folder's name"},
    {"hub-f32", flag, command_pack, all_help, "", "off",
     "round the hub's codes (--hub-dtype int8 or int4) from f32, not from bf16"},
    {"progress", flag, makes_package | command_verify | reads_text, all_help, "", "off",
     "print a line per tenth of the work on stderr where it is no terminal"},
};

}  // namespace

std::span<const Setting> setting_table() {
    static const std::vector<Setting> table = [] {
        std::vector<Setting> all;
        const auto add = [&all](SettingGroup group, std::span<const Setting> settings) {
            for (const Setting& setting : settings) all.emplace_back(setting).group = group;
        };
        add(SettingGroup::address, address_settings);
        add(SettingGroup::model, model_settings);
        add(SettingGroup::contributors, contributor_settings);
        add(SettingGroup::logs, log_settings);
        for (const std::span<const Setting> rows : std::initializer_list<std::span<const Setting>>{
                 generate_settings, eval_settings, pull_settings, pack_settings})
            add(SettingGroup::model, rows);
        return all;
    }();
    return table;
}

}  // namespace moex
