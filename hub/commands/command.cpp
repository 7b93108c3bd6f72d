#include "hub/commands/command.h"

#include <algorithm>
#include <cstdio>

namespace moex {
namespace {

std::vector<Command> commands_on_models() {
    return {
        {"serve",
         command_serve,
         "Serve a mixture-of-experts model whose experts run in browsers.",
         "moex-hub serve --model qwen3-30b",
         {},
         run_serve},
        {"pack",
         command_pack,
         "Turn a Hugging Face checkpoint into a model package.",
         "moex-hub pack ~/Qwen3-30B-A3B packages/qwen3-30b",
         {{"HF_DIR", "",
           "folder with config.json, *.safetensors (bf16, f16, f32, FP8, GPTQ, AWQ, MXFP4) and the "
           "tokenizer's files, or a GGUF file",
           true},
          {"OUT", "", "folder to write", true},
          {"--dry-run", "",
           "print sizes, what is quantised and what is left out; read no weights, write nothing"},
          {"--keep-format", "",
           "quantise nothing: fail where a weight's codes cannot be taken over as they are"},
          {"--shadow", "DTYPE",
           "HF_DIR, a package too, gives OUT its experts alone, in int2, int3, nf4 or int8: a "
           "shadow for `serve --draft DIR` or `--prefetch shadow:DIR`",
           false, "int2|int3|nf4|int8"},
          {"--calibrate", "FILE",
           "a text to read with the model: its INT4 experts are then quantised for such texts, and "
           "the package stores their default vectors"}},
         run_pack},
        {"verify",
         command_verify,
         "Check every hash and shape of a package.",
         "moex-hub verify packages/qwen3-30b",
         {{"DIR", "", "the package", true}},
         run_verify},
        {"generate",
         command_generate,
         "Generate text on this machine; stdout is the text alone.",
         "moex-hub generate --prompt \"Tell me a story about a lighthouse\" --chat --seed 7",
         {{"--prompt", "TEXT", "what to continue"},
          {"--chat", "", "TEXT is a user's message: apply the model's chat template"},
          {"--prompt-ids", "FILE", "token ids, separated by blanks or commas (- is stdin)"},
          {"--margins", "",
           "print to stderr the smallest gap between first and second log-probability"}},
         run_generate},
        {"chat",
         // chat takes the settings of generate, too.
         command_chat | command_generate,
         "Chat in the terminal, with a package or with a running hub.",
         "moex-hub chat --model packages/qwen3-30b",
         {{"--url", "URL", "a running hub, http://127.0.0.1:8080, instead of a package"},
          {"--system", "TEXT", "the system message; /system changes it"},
          {"--key-file", "FILE", "of --url: the first word is a key of the hub's API"},
          {"--ca", "FILE", "of --url: trust the certificates in this file (PEM) alone"},
          {"--insecure-http", "", "of --url: allow plain http beyond this machine"}},
         run_chat},
    };
}

// Commands on the folder of pulled checkpoints and packages.
std::vector<Command> commands_on_stored_models() {
    return {
        {"pull",
         // `pull --pack` takes the settings of pack, too.
         command_pull | command_pack,
         "Download a checkpoint, check every hash, and pack it on request.",
         "moex-hub pull Qwen/Qwen3-30B-A3B --pack",
         {{"REPO", "", "OWNER/NAME, or OWNER/NAME@REVISION for a branch, a tag or a commit", true},
          {"DIR", "", "folder to write; default: OWNER/NAME in the folder of --models-dir"},
          {"--file", "FILE", "fetch this GGUF or safetensors file alone, and all its parts"},
          {"--pack", "", "then make the package DIR.moex"},
          {"--stream", "",
           "with --pack: pack while the shards arrive and delete what is packed, so that the disk "
           "never has the whole checkpoint"}},
         run_pull},
        {"models",
         command_models,
         "List the pulled checkpoints and packages.",
         "moex-hub models",
         {{"--json", "", "one JSON array"}},
         run_models},
        {"rm",
         command_models,
         "Remove a pulled checkpoint or a package, after asking.",
         "moex-hub rm Qwen/Qwen3-30B-A3B",
         {{"NAME", "", "as `models` lists it", true}, {"--yes", "", "do not ask"}},
         run_rm},
    };
}

std::vector<Command> commands_on_texts() {
    return {
        {"eval",
         command_eval,
         "Perplexity of a text.",
         "moex-hub eval --text book.txt --window 512 --windows 24",
         {{"--text", "FILE", "UTF-8 text, tokenised once as a whole", true},
          {"--reference", "DIR",
           "also the divergence from this package, such as the same model with bf16 experts"},
          {"--experts", "MODES",
           "also the perplexity of lossy modes, with commas between them: speculative (every "
           "second "
           "layer's calls leave before the last answers are in) and estimator (a layer's experts "
           "are guessed one layer before)"},
          {"--out", "FILE", "the table of --experts as CSV"},
          {"--record", "",
           "keep the table beside the package (losses.json), so that `serve` reports what a mode "
           "costs"}},
         run_eval},
        {"train-estimator",
         command_predict,
         "Train a small network that predicts routes, and put it into the package.",
         "moex-hub train-estimator --model packages/qwen3-30b --text books.txt --windows 512",
         {{"--text", "FILE", "UTF-8 text, tokenised once as a whole", true}},
         run_train_estimator},
    };
}

std::vector<Command> commands_on_packages() {
    return {
        {"inspect",
         command_inspect,
         "Print what a package holds.",
         "moex-hub inspect packages/qwen3-30b",
         {{"DIR", "", "the package; default: --model"}, {"--json", "", "one JSON object"}},
         run_inspect},
        {"synth",
         command_synth,
         "Write a package with random weights, for benches.",
         "moex-hub synth --shape bench-moe packages/bench-moe",
         {{"--shape", "NAME",
           "bench-moe, qwen3-30b-a3b, gpt-oss-20b, glm-4.5-air, qwen3-next-80b-a3b, "
           "qwen3.6-35b-a3b, qwen3-0.6b, paper, demo, many-experts, tiny or "
           "tiny-hybrid",
           true},
          {"OUT", "", "folder to write", true}},
         run_synth},
    };
}

// Commands that calculate how a swarm will perform, without any worker.
std::vector<Command> commands_on_swarms() {
    return {
        {"model",
         0,
         "Calculate times of rounds, tokens and prompts, and what a worker holds.",
         "moex-hub model --shape qwen3-30b-a3b --rtt-ms 10 --workers 32 --copies 2",
         {{"--shape", "NAME",
           "bench-moe, qwen3-30b-a3b, paper, demo, tiny or a package's folder [qwen3-30b-a3b]"},
          {"--workers", "N", "workers that hold experts [16]"},
          {"--replicas", "N", "workers that hold the same expert [2]"},
          {"--bits", "B", "bits of an expert's weight, scales included [the package's, or 4.25]"},
          {"--copies", "H", "workers that get the same call at once: 1 to H, a row each [3]"},
          {"--rtt-ms", "MS", "round trip to a worker [2]"},
          {"--expert-ms", "MS", "a worker's own time for one row [0.7]"},
          {"--sigma", "S", "spread of round trip and expert, log-normal; 0: none [0.5]"},
          {"--readback-ms", "MS", "copy from a worker's GPU to its memory [0.2]"},
          {"--hub-ms", "MS", "attention, router and sums of a layer [1.5]"},
          {"--rows", "N", "rows of a prompt's chunk [256]"},
          {"--hub-row-ms", "MS", "what each further row adds to --hub-ms [0]"},
          {"--expert-row-ms", "MS", "what each further row adds to --expert-ms [0]"},
          {"--acceptance", "P", "share of drafted tokens that are accepted; 0: no drafts [0]"},
          {"--draft-ms", "MS", "what the hub needs to draft a token [0]"},
          {"--mbit-s", "N", "bandwidth of the hub's link, one way; 0: bytes take no time [0]"},
          {"--paper", "", "the paper's tables beside what its equations give, and nothing else"},
          {"--from-metrics", "URL",
           "a running hub, http://HOST:PORT (- reads its /api/status from stdin): the time of a "
           "pass calculated from its workers' times, beside the measured time"},
          {"--over", "SECONDS",
           "of --from-metrics: measure for this time; 0: since the hub began [0]"},
          {"--key-file", "FILE", "of --from-metrics: a key of the hub's API"},
          {"--csv", "", "rows as CSV"},
          {"--json", "", "rows as one JSON array"}},
         run_model},
    };
}

// Commands that an operator needs besides `serve`, such as keys, bans and certificates.
std::vector<Command> commands_around_them() {
    return {
        {"ban",
         command_ban,
         "List banned workers (for false answers, or by you), or lift the ban of one.",
         "moex-hub ban lift 3f9a",
         {{"ACTION", "", "list or lift", true, "list|lift"},
          {"KEY", "",
           "lift: the worker's key as list shows it, or the first characters of the key"}},
         run_ban},
        {"fleet",
         command_fleet,
         "List the hubs that share a store, or write a key for them (serve --fleet-key).",
         "moex-hub fleet --store postgresql://db.example/moex",
         {{"ACTION", "", "key: write a new key to FILE; default: list the hubs", false, "key"},
          {"FILE", "", "key: the file to write (0600); it must not exist"},
          {"--json", "", "one JSON array"}},
         run_fleet},
        {"front",
         command_front,
         "Hold the clients' connections before several hubs: a stream goes on when its hub dies.",
         "moex-hub front --store postgresql://db.example/moex --fleet-key fleet.key",
         {{"--ca", "FILE", "of https addresses of hubs: trust these certificates (PEM) alone"}},
         run_front},
        {"forget",
         command_forget,
         "Delete the pages of prompts and answers that a hub keeps on disk.",
         "moex-hub forget",
         {},
         run_forget},
        {"key",
         command_key,
         "Make, list and revoke keys, while a hub runs or not; print the usage of keys.",
         "moex-hub key add \"Ada's notebook\" --limit 20000 --expires 90d",
         {{"ACTION", "", "add, list, revoke or usage", true, "add|list|revoke|usage"},
          {"NAME", "", "add: the person that gets the key; revoke: the key's id or name"},
          {"--role", "ROLE", "add: api, join (workers) or admin [api]", false, "api|join|admin"},
          {"--limit", "TOKENS", "add: most tokens per minute, prompts and answers together"},
          {"--expires", "WHEN", "add: 30d, 12h or a day like 2027-01-31 [never]"},
          {"--csv", "", "usage: one row per day and key"}},
         run_key},
        {"backup",
         command_backup,
         "Copy the state of a hub (keys, counts, bans) into one file, while a hub runs or not.",
         "moex-hub backup moex-2026-11-27.sqlite",
         {{"FILE", "", "file to write; it must not exist", true}},
         run_backup},
        {"sign",
         command_sign,
         "Print the key with which a hub signs, sign a package, or change the key.",
         "moex-hub sign packages/qwen3-30b --key publisher.pem",
         {{"DIR", "", "the package to sign: writes signature.json beside its manifest"},
          {"--key", "FILE",
           "the publisher's Ed25519 key (PEM; made if it does not exist); default: the hub's key "
           "in the state folder"},
          {"--renew", "", "make a new key, which the old one signs, so that others follow it"}},
         run_sign},
        {"cert",
         command_cert,
         "Make a self-signed certificate for serve --tls-cert/--tls-key.",
         "moex-hub cert --host hub.local",
         {{"--days", "N", "validity [365]"},
          {"--out", "DIR", "folder for cert.pem and key.pem; default: the state folder"},
          {"--force", "", "replace existing files"}},
         run_cert},
    };
}

// Commands about this program and others.
std::vector<Command> commands_on_programs() {
    return {
        {"doctor",
         command_serve,
         "Check that `serve` would work with these options, and print how to fix problems.",
         "moex-hub doctor --listen 0.0.0.0:8443 --tls-cert certs/cert.pem --tls-key certs/key.pem",
         {},
         run_doctor},
        {"clients",
         // a command without settings, which still has options of its own
         0,
         "Print the settings with which other programs use a running hub.",
         "moex-hub clients claude-code",
         {{"PROGRAM", "", "the program; default: all of them", false,
           "claude-code|codex|qwen-code|opencode|continue|open-webui"},
          {"--url", "URL", "the running hub [http://127.0.0.1:8080]"},
          {"--ca", "FILE", "trust the certificates in this file (PEM) alone"},
          {"--insecure-http", "", "allow plain http beyond this machine"}},
         run_clients},
        {"completion",
         0,
         "Print a script with which a shell completes commands and options.",
         "moex-hub completion bash > ~/.local/share/bash-completion/completions/moex-hub",
         {{"SHELL", "", "bash", true, "bash"}},
         run_completion},
        {"version", 0, "Print the version.", "moex-hub version", {}, run_version},
    };
}

}  // namespace

std::span<const Command> command_table() {
    static const std::vector<Command> commands = [] {
        std::vector<Command> all;
        for (const auto& some : {commands_on_models(), commands_on_stored_models(),
                                 commands_on_texts(), commands_on_packages(), commands_on_swarms(),
                                 commands_around_them(), commands_on_programs()})
            all.insert(all.end(), some.begin(), some.end());
        return all;
    }();
    return commands;
}

std::string one_line(std::string_view sentence) {
    std::string shown(sentence);
    std::replace_if(
        shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
    return shown;
}

int fail(std::string_view sentence) {
    std::fprintf(stderr, "moex-hub: %s\n", one_line(sentence).c_str());
    return exit_failed;
}

}  // namespace moex
