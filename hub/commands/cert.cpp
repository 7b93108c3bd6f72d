// moex-hub cert: a self-signed certificate in the state
// folder, and plain words on what browsers make of it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "hub/commands/command.h"
#include "hub/commands/self_signed.h"
#include "hub/registry/registry.h"

namespace moex {
namespace {

// Created with its final mode, so that the key is never readable by others, not even for a moment.
Status write_file(const std::filesystem::path& path, const std::string& content, mode_t mode) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (file < 0) return Error{ErrorCode::io_error, text(path.string(), ": cannot be created")};
    const bool written = ::write(file, content.data(), content.size()) ==
                         static_cast<ssize_t>(content.size());
    if (::close(file) != 0 || !written)
        return Error{ErrorCode::io_error,
                     text(path.string(), ": cannot be written; is the disk full?")};
    return {};
}

// How other machines reach this one: the addresses of
// its interfaces, but loopback and link-local ones.
std::vector<std::string> outward_addresses() {
    std::vector<std::string> addresses;
    ifaddrs* interfaces = nullptr;
    if (getifaddrs(&interfaces) != 0) return addresses;
    for (const ifaddrs* one = interfaces; one; one = one->ifa_next) {
        if (!one->ifa_addr || !(one->ifa_flags & IFF_UP) || (one->ifa_flags & IFF_LOOPBACK))
            continue;
        char text[INET6_ADDRSTRLEN] = {};
        if (one->ifa_addr->sa_family == AF_INET) {
            inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text,
                      sizeof text);
        } else if (one->ifa_addr->sa_family == AF_INET6) {
            const in6_addr& address =
                reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
            if (!IN6_IS_ADDR_LINKLOCAL(&address)) inet_ntop(AF_INET6, &address, text, sizeof text);
        }
        if (*text) addresses.emplace_back(text);
    }
    freeifaddrs(interfaces);
    return addresses;
}

}  // namespace

int run_cert(const Invocation& invocation) {
    int days = 365;
    if (const std::string* given = invocation.argument("--days")) {
        const auto [end, failure] = std::from_chars(given->data(), given->data() + given->size(),
                                                    days);
        if (failure != std::errc() || end != given->data() + given->size() || days < 1 ||
            days > 3650) {
            fail(text("--days: wanted a whole number from 1 to 3650, found \"", *given, "\""));
            return exit_wrong_arguments;
        }
    }
    std::filesystem::path folder = invocation.settings.text("state");
    if (const std::string* out = invocation.argument("--out")) folder = *out;
    if (folder.empty()) folder = default_state_directory();
    std::vector<std::string> names{"localhost", "127.0.0.1", "::1"};
    const auto add = [&](const std::string& name) {
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    };
    char host_name[256] = {};
    if (gethostname(host_name, sizeof host_name - 1) == 0 && host_name[0]) add(host_name);
    for (const std::string& address : outward_addresses()) add(address);
    for (const std::string& name : invocation.settings.list("host")) add(name);
    const std::filesystem::path certificate_path = folder / "cert.pem",
                                key_path = folder / "key.pem";
    std::error_code failure;
    if (!invocation.argument("--force") && (std::filesystem::exists(certificate_path, failure) ||
                                            std::filesystem::exists(key_path, failure)))
        return fail(
            text(certificate_path.string(), " or key.pem exists already; --force replaces both"));
    if (invocation.check_only) return exit_stopped;
    auto made = make_self_signed(names, days);
    if (!made.ok()) return fail(made.error().message);
    if (!std::filesystem::exists(folder, failure)) {
        std::filesystem::create_directories(folder, failure);
        std::filesystem::permissions(folder, std::filesystem::perms::owner_all, failure);
    }
    constexpr mode_t owner_only = 0600, readable = 0644;
    if (const Status written = write_file(key_path, made->key_pem, owner_only); !written.ok())
        return fail(written.error().message);
    if (const Status written = write_file(certificate_path, made->certificate_pem, readable);
        !written.ok())
        return fail(written.error().message);
    std::string list;
    for (const std::string& name : names) list += text(list.empty() ? "" : ", ", name);
    std::printf(
        "certificate  %s\nkey          %s  (mode 0600)\nnames        %s\nvalid        %d "
        "days\nSHA-256      %s\n\n"
        "Browsers do not know this certificate: they show a warning page once per name (\"Your "
        "connection is not private\");\n"
        "compare the SHA-256 above under \"Certificate\", then Advanced > Proceed. Chrome then "
        "runs pages, WebGPU and WebSockets;\n"
        "Safari on iOS refuses WebSockets until the certificate is installed and trusted in "
        "Settings.\n"
        "Smoother: mkcert or a reverse proxy with a real certificate.\n\n"
        "next: moex-hub serve --listen 0.0.0.0:8443 --tls-cert %s --tls-key %s\n"
        "      (every name or address that people type has to be one of the names above; more of "
        "them: moex-hub cert --force --host NAME)\n",
        certificate_path.c_str(), key_path.c_str(), list.c_str(), days,
        made->sha256_fingerprint.c_str(), certificate_path.c_str(), key_path.c_str());
    return exit_stopped;
}

}  // namespace moex
