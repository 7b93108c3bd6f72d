// moex-hub doctor: checks each condition that `serve` needs, and prints how to fix a problem.
// Source: the Linux manual pages adjtimex(2), getrlimit(2), statvfs(3).
#include <netdb.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <memory>
#include <system_error>

#include "hub/base/system_memory.h"
#include "hub/commands/command.h"
#include "hub/commands/gpu/gpu_steps.h"
#include "hub/commands/load_model.h"
#include "hub/commands/output.h"
#include "hub/commands/progress.h"
#include "hub/commands/serve/serve_settings.h"
#include "hub/commands/state_folder.h"
#include "hub/net/access/access.h"
#include "hub/registry/registry.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

struct Finding {
    enum class Grade { ok, note, wrong } grade = Grade::ok;
    std::string words;
    std::string fix = {};  // instruction that says how to repair the problem of a note or an error
};
using Grade = Finding::Grade;

Finding look_at_settings(const Settings& settings) {
    const auto read = read_serve_settings(settings);
    if (read.ok()) return {Grade::ok, "no setting contradicts another"};
    return {Grade::wrong, read.error().message, "change the options that it names"};
}

Finding look_at_model(const Settings& settings) {
    const auto directory = find_model(settings);
    if (!directory.ok())
        return {Grade::wrong, directory.error().message, "moex-hub pack makes a package"};
    const auto package = ModelPackage::open(*directory);
    if (!package.ok())
        return {Grade::wrong, package.error().message, "moex-hub verify says more; pack it anew"};

    const ModelPackage& model = **package;
    const std::uint32_t missing = model.num_missing_blobs();
    if (missing > 0)
        return {Grade::note,
                text(model.name(), ": ", missing, " of ", model.num_blobs(),
                     " expert blobs are not here"),
                "serve /weights at this address from another machine, or pack the model here"};
    return {Grade::ok, text(model.name(), ", all of its ", model.num_blobs(), " expert blobs")};
}

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

template <class Thing, class Free>
auto owned(Thing* thing, Free free) {
    return std::unique_ptr<Thing, Free>(thing, free);
}

// Reads the first certificate and the key of the PEM files, and checks that the key belongs to the
// certificate.
Finding look_at_tls(const Settings& settings) {
    const std::string &cert_file = settings.text("tls-cert"), &key_file = settings.text("tls-key");
    const bool loopback = net::is_loopback_address(
        parse_listen(settings.text("listen")).value().address);
    if (cert_file.empty())
        return loopback ? Finding{Grade::ok, "not used; loopback needs none"}
                        : Finding{Grade::note,
                                  "not used beyond loopback: tabs have WebGPU on "
                                  "secure pages only",
                                  "moex-hub cert makes a certificate; or a proxy that speaks TLS"};

    const char* const make = "moex-hub cert makes both; --tls-cert and --tls-key name them";
    const auto cert_bio = owned(BIO_new_file(cert_file.c_str(), "r"), BIO_free);
    const auto cert = owned(
        cert_bio ? PEM_read_bio_X509(cert_bio.get(), nullptr, nullptr, nullptr) : nullptr,
        X509_free);
    if (!cert) return {Grade::wrong, text(cert_file, ": no certificate can be read"), make};
    const auto key_bio = owned(BIO_new_file(key_file.c_str(), "r"), BIO_free);
    const auto key = owned(
        key_bio ? PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr) : nullptr,
        EVP_PKEY_free);
    if (!key) return {Grade::wrong, text(key_file, ": no private key can be read"), make};
    if (X509_check_private_key(cert.get(), key.get()) != 1)
        return {Grade::wrong, text(key_file, " is not the key of ", cert_file), make};

    int days = 0, seconds = 0;
    if (ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(cert.get())) != 1)
        return {Grade::wrong, text(cert_file, ": its end cannot be read"), make};
    if (days < 0 || (days == 0 && seconds < 0))
        return {Grade::wrong, text(cert_file, " has expired"),
                "renew it; kill -HUP lets a running hub read it again"};
    if (days < 14)
        return {Grade::note, text(cert_file, " expires in ", days, " days"),
                "renew it; kill -HUP lets a running hub read it again"};
    return {Grade::ok, text(cert_file, " holds for ", days, " days")};
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

Finding look_at_state(const Settings& settings) {
    const auto folder = state_folder(settings);
    if (!folder.ok()) return {Grade::wrong, folder.error().message, "--state DIR"};
    const fs::path directory = *folder;
    std::error_code failure;
    if (fs::exists(directory / "moex.sqlite", failure)) {
        const auto registry = Registry::open(directory);
        if (!registry.ok())
            return {Grade::wrong, registry.error().message,
                    "--state names a folder of the hub's own user"};
    }

    fs::path there = directory;
    while (!fs::exists(there, failure) && there.has_relative_path()) there = there.parent_path();
    if (::access(there.c_str(), W_OK) != 0)
        return {Grade::wrong, text(there.string(), ": this user may not write there"),
                "--state names a folder that it may write"};

    struct statvfs disk {};
    if (::statvfs(there.c_str(), &disk) != 0)
        return {Grade::wrong, text(there.string(), ": its disk does not answer"), "mount it"};
    const std::uint64_t bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize;
    constexpr std::uint64_t wanted_min = 256u << 20;
    if (bytes < wanted_min)
        return {Grade::wrong, text(directory.string(), ": only ", bytes_text(bytes), " free"),
                "make room: keys and counts have to be written"};
    return {Grade::ok, text(directory.string(), ", ", bytes_text(bytes), " free")};
}

Finding look_at_descriptors(const Settings& settings) {
    rlimit files{};
    if (::getrlimit(RLIMIT_NOFILE, &files) != 0)
        return {Grade::note, "the system does not report the limit", "ulimit -Hn"};
    // descriptors besides those of connections: files, sqlite and pipes
    constexpr std::uint64_t own = 64;
    const std::uint64_t wanted = settings.number("connections-max") + own;
    if (files.rlim_max >= wanted)
        return {Grade::ok, text("up to ", files.rlim_max, " (", wanted, " wanted)")};
    return {Grade::wrong, text("up to ", files.rlim_max, ", ", wanted, " wanted"),
            text("raise the hard limit (LimitNOFILE= in the unit, ulimit -Hn), or "
                 "--connections-max ",
                 files.rlim_max > own ? files.rlim_max - own : 0)};
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
    } rows[] = {{"settings", look_at_settings},
                {"model", look_at_model},
                {"port", look_at_port},
                {"TLS", look_at_tls},
                {"processor", look_at_processor},
                {"memory", look_at_memory},
                {"GPU", look_at_gpu},
                {"state", look_at_state},
                {"descriptors", look_at_descriptors},
                {"clock", look_at_clock}};

    bool is_well = true;
    std::string out;
    for (const auto& [name, look] : rows) {
        const Finding finding = look(invocation.settings);
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
