// moex-hub cert: makes a self-signed certificate in the state folder, and explains how browsers
// treat the certificate.
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
#include "hub/commands/state_folder.h"
#include "hub/net/access/access.h"

namespace moex {
namespace {

// Creates a file with its final permission bits, so that other users can never read the key in it.
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

// Returns the addresses at which other machines reach this machine: those of its network
// interfaces, without loopback and link-local addresses.
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

// Returns the names at which this hub may be reached: localhost, the names of this machine, and
// those of --host.
std::vector<std::string> names_of(const Settings& settings) {
    std::vector<std::string> names{"localhost", "127.0.0.1", "::1"};
    const auto add = [&](const std::string& name) {
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    };

    char host_name[256] = {};
    if (gethostname(host_name, sizeof host_name - 1) == 0 && host_name[0]) add(host_name);
    for (const std::string& address : outward_addresses()) add(address);
    for (const std::string& name : settings.list("host")) add(net::host_of_address(name));
    return names;
}

Result<int> parse_days(const std::string& given) {
    int days = 0;
    const auto [end, failure] = std::from_chars(given.data(), given.data() + given.size(), days);
    if (failure != std::errc() || end != given.data() + given.size() || days < 1 || days > 3650)
        return Error{ErrorCode::invalid_argument,
                     text("--days: wanted a whole number from 1 to 3650, found \"", given, "\"")};
    return days;
}

Status write_pair(const Certificate& made, const std::filesystem::path& certificate_path,
                  const std::filesystem::path& key_path) {
    const std::filesystem::path folder = certificate_path.parent_path();
    std::error_code failure;
    if (!std::filesystem::exists(folder, failure)) {
        std::filesystem::create_directories(folder, failure);
        std::filesystem::permissions(folder, std::filesystem::perms::owner_all, failure);
    }

    constexpr mode_t owner_only = 0600, readable = 0644;
    MOEX_TRY(write_file(key_path, made.key_pem, owner_only));
    return write_file(certificate_path, made.certificate_pem, readable);
}

void print_report(const Certificate& made, const std::filesystem::path& certificate_path,
                  const std::filesystem::path& key_path, const std::vector<std::string>& names,
                  int days) {
    std::string list;
    for (const std::string& name : names) list += text(list.empty() ? "" : ", ", name);

    std::printf(
        "certificate  %s\nkey          %s  (mode 0600)\nnames        %s\nvalid        %d days\n"
        "SHA-256      %s\n\n",
        certificate_path.c_str(), key_path.c_str(), list.c_str(), days,
        made.sha256_fingerprint.c_str());
    std::printf(
        "Browsers do not know this certificate: they show a warning page once per name (\"Your "
        "connection is not private\");\n"
        "compare the SHA-256 above under \"Certificate\", then Advanced > Proceed. Chrome then "
        "runs pages, WebGPU and WebSockets;\n"
        "Safari on iOS refuses WebSockets until the certificate is installed and trusted in "
        "Settings.\n"
        "Smoother: mkcert or a reverse proxy with a real certificate.\n\n");
    std::printf(
        "next: moex-hub serve --listen 0.0.0.0:8443 --tls-cert %s --tls-key %s\n"
        "      (every name or address that people type has to be one of the names above; more of "
        "them: moex-hub cert --force --host NAME)\n",
        certificate_path.c_str(), key_path.c_str());
}

}  // namespace

int run_cert(const Invocation& invocation) {
    int days = 365;
    if (const std::string* given = invocation.argument("--days")) {
        const auto parsed = parse_days(*given);
        if (!parsed.ok()) {
            fail(parsed.error().message);
            return exit_wrong_arguments;
        }
        days = *parsed;
    }

    std::filesystem::path folder;
    if (const std::string* out = invocation.argument("--out")) folder = *out;
    if (folder.empty()) {
        const auto state = state_folder(invocation.settings);
        if (!state.ok()) return fail(state.error().message);
        folder = *state;
    }
    const std::filesystem::path certificate_path = folder / "cert.pem";
    const std::filesystem::path key_path = folder / "key.pem";

    std::error_code failure;
    const bool is_there = std::filesystem::exists(certificate_path, failure) ||
                          std::filesystem::exists(key_path, failure);
    if (is_there && !invocation.argument("--force"))
        return fail(
            text(certificate_path.string(), " or key.pem exists already; --force replaces both"));
    if (invocation.check_only) return exit_stopped;

    const std::vector<std::string> names = names_of(invocation.settings);
    const auto made = make_self_signed(names, days);
    if (!made.ok()) return fail(made.error().message);
    if (const Status written = write_pair(*made, certificate_path, key_path); !written.ok())
        return fail(written.error().message);

    print_report(*made, certificate_path, key_path, names, days);
    return exit_stopped;
}

}  // namespace moex
