// moex-hub doctor: prints the checks of `serve --check`, those of the machine beside them, and how
// to fix a problem. Source: the Linux manual pages adjtimex(2), getrlimit(2).
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "hub/base/system_memory.h"
#include "hub/commands/command.h"
#include "hub/commands/gpu/gpu_steps.h"
#include "hub/commands/output.h"
#include "hub/commands/progress.h"
#include "hub/commands/serve/open_files.h"
#include "hub/commands/serve/serve_check.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

using Grade = Finding::Grade;

// Checks the address of --listen: binds it as `serve` would, and closes it again.
Finding look_at_port(const Settings& settings) {
    const ListenAddress listen = parse_listen(settings.text("listen")).value();
    const std::string shown = text(listen.address, ":", listen.port);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
    addrinfo* found = nullptr;
    if (getaddrinfo(listen.address.c_str(), std::to_string(listen.port).c_str(), &hints, &found) !=
        0)
        return {Grade::wrong, text(shown, " is no address"), "--listen 127.0.0.1:8080"};

    const int socket = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const int bound = ::bind(socket, found->ai_addr, found->ai_addrlen);
    const int reason = errno;
    const bool is_free = bound == 0 && ::listen(socket, 1) == 0;
    freeaddrinfo(found);
    if (socket >= 0) ::close(socket);

    if (is_free) return {Grade::ok, text(shown, " is free")};
    const std::string why = std::generic_category().message(bound == 0 ? errno : reason);
    return {Grade::wrong, text(shown, " cannot be bound: ", why),
            reason == EACCES
                ? "choose a port from 1024 on, or start as root with --user NAME"
                : "choose another with --listen, or stop the program that has it (ss -ltnp)"};
}

Finding look_at_processor(const Settings&) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vnni"))
        return {Grade::ok, "AVX-512 with products of 8-bit integers"};
    if (__builtin_cpu_supports("avx512f")) return {Grade::ok, "AVX-512"};
    if (__builtin_cpu_supports("avx2")) return {Grade::ok, "AVX2"};
    return {Grade::note, "no AVX2: what this machine computes itself is slow",
            "a machine with AVX2, or more contributors with --local-fallback off"};
#else
    return {Grade::note, "not x86-64: not tested", "an x86-64 machine"};
#endif
}

Finding look_at_memory(const Settings&) {
    const std::uint64_t bytes = memory_available();
    if (bytes == 0) return {Grade::note, "the system does not say how much is free", "set --kv-mb"};
    constexpr std::uint64_t wanted_min = 1u << 30;
    if (bytes >= wanted_min) return {Grade::ok, text(bytes_text(bytes), " free")};
    return {Grade::note, text("only ", bytes_text(bytes), " free"),
            "end other programs, or --kv-mb for a smaller KV cache"};
}

// Checks the GPU that --gpu names. Without --gpu the function checks whether moex-worker could use
// a GPU on this machine; the hub itself needs no GPU.
Finding look_at_gpu(const Settings& settings) {
    if (const std::string& wanted = settings.text("gpu"); wanted != "off") {
        const auto found = find_gpu(wanted);
        if (found.ok()) return {Grade::ok, text("--gpu ", wanted, ": ", *found)};
        if (wanted == "auto" && found.error().code == ErrorCode::unavailable)
            return {Grade::note, text("the processor computes: ", found.error().message),
                    "a driver with Vulkan 1.1, or nothing"};
        return {Grade::wrong, text("--gpu ", wanted, ": ", found.error().message),
                "--gpu auto, off, or one of these"};
    }

    std::error_code failure;
    int nodes = 0, closed = 0;
    for (const auto& entry : fs::directory_iterator("/dev/dri", failure)) {
        if (!entry.path().filename().string().starts_with("renderD")) continue;
        ++nodes;
        closed += ::access(entry.path().c_str(), R_OK | W_OK) != 0;
    }
    if (nodes == 0)
        return {Grade::note, "none here: only tabs and workers elsewhere compute on one",
                "nothing, unless moex-worker is to run here: then a driver with Vulkan 1.1"};
    if (closed > 0)
        return {Grade::note, text(closed, " of ", nodes, " closed to this user"),
                "usermod -aG render USER, then log in again"};
    return {Grade::ok,
            text(nodes, nodes == 1 ? " device" : " devices", " for serve --gpu and moex-worker")};
}

Finding look_at_descriptors(const Settings& settings) {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0)
        return {Grade::note, "the system does not report the limit", "ulimit -Hn"};
    const auto connections = static_cast<std::uint32_t>(settings.number("connections-max"));
    const std::uint64_t wanted = open_files_for(connections);
    if (files.rlim_max >= wanted)
        return {Grade::ok, text("up to ", files.rlim_max, " (", wanted, " wanted)")};
    return {Grade::note, text("up to ", files.rlim_max, ", ", wanted, " wanted"),
            text("raise the hard limit (LimitNOFILE= in the unit, ulimit -Hn), or "
                 "--connections-max ",
                 connections_within(connections, files.rlim_max))};
}

Finding look_at_clock(const Settings&) {
    constexpr std::int64_t released_s = 1'767'225'600;  // 2026-01-01
    if (std::time(nullptr) < released_s)
        return {Grade::wrong,
                "is earlier than this program: certificates and ends of keys depend on it",
                "timedatectl set-ntp true"};
    timex state{};
    if (::adjtimex(&state) == TIME_ERROR || (state.status & STA_UNSYNC))
        return {Grade::note, "not synchronised", "timedatectl set-ntp true"};
    return {Grade::ok, "synchronised"};
}

}  // namespace

int run_doctor(const Invocation& invocation) {
    const struct {
        const char* name;
        Finding (*look)(const Settings&);
    } machine[] = {
        {"port", look_at_port}, {"processor", look_at_processor},     {"memory", look_at_memory},
        {"GPU", look_at_gpu},   {"descriptors", look_at_descriptors}, {"clock", look_at_clock}};

    std::vector<CheckedThing> things = check_serve(invocation.settings);
    for (const auto& [name, look] : machine) things.push_back({name, look(invocation.settings)});

    bool is_well = true;
    std::string out;
    for (const auto& [name, finding] : things) {
        const char* const grade = finding.grade == Grade::ok     ? "ok"
                                  : finding.grade == Grade::note ? "note"
                                                                 : "wrong";
        std::string line = grade;
        line.resize(7, ' ');
        line += name;
        line.resize(20, ' ');
        out += text(line, one_line(finding.words), '\n');
        if (finding.grade != Grade::ok)
            out += text(std::string(20, ' '), "fix: ", finding.fix, '\n');
        is_well &= finding.grade != Grade::wrong;
    }
    out += is_well ? "\nserve would start\n" : "\nserve would fail\n";
    (void)print_now(out);
    return is_well ? exit_stopped : exit_failed;
}

}  // namespace moex
