// moex-hub front: holds the connections of clients before the hubs of a fleet.
#include <stdexcept>

#include "hub/base/log.h"
#include "hub/commands/command.h"
#include "hub/commands/output.h"
#include "hub/net/access/access.h"
#include "hub/net/front/front.h"

namespace moex {

int run_front(const Invocation& invocation) {
    const Settings& settings = invocation.settings;
    const auto refuse = [](std::string_view sentence) {
        fail(sentence);
        return static_cast<int>(exit_wrong_arguments);
    };
    net::FrontOptions options;
    options.hub_urls = settings.list("hub");
    options.store_url = settings.text("store");
    if (options.hub_urls.empty() == options.store_url.empty())
        return refuse(
            "a front wants the hubs: either --hub URL for each of them, or --store URL of the "
            "store that they share");
    if (settings.text("fleet-key").empty())
        return refuse("a front wants the key of its hubs: --fleet-key FILE");
    const auto key = FleetKey::read(settings.text("fleet-key"));
    if (!key.ok()) return fail(text("--fleet-key: ", key.error().message));

    const ListenAddress listen = parse_listen(settings.text("listen")).value();
    options.listen_address = listen.address;
    options.port = listen.port;
    options.trusted_proxies = settings.list("trusted-proxy");
    options.connections_max = static_cast<std::size_t>(settings.number("connections-max"));
    options.body_bytes_max = settings.number("request-memory-mb") << 20;
    options.tls_cert = settings.text("tls-cert");
    options.tls_key = settings.text("tls-key");
    if (const std::string* const ca = invocation.argument("--ca")) options.hub_ca_file = *ca;
    if (options.tls_cert.empty() && !net::is_loopback_address(options.listen_address) &&
        !settings.on("insecure-http"))
        return refuse(text("--listen ", options.listen_address,
                           " is open to other machines: give --tls-cert and --tls-key, or "
                           "--insecure-http behind a proxy that speaks TLS"));
    if (invocation.check_only) return exit_stopped;
    try {
        net::Front front(std::move(options), *key);
        log_info("front: listens", kv("url", front.base_url()));
        (void)print_now(text("ready: url=", front.base_url(), " api=", front.base_url(), "/v1\n"));
        front.run();
    } catch (const std::runtime_error& failure) {
        return fail(failure.what());
    }
    return exit_stopped;
}

}  // namespace moex
