#include "hub/commands/serve/serve_check.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <ctime>
#include <stdexcept>

#include "hub/base/sha256.h"
#include "hub/commands/load_model.h"
#include "hub/commands/progress.h"
#include "hub/commands/serve/serve_options.h"
#include "hub/commands/serve/serve_places.h"
#include "hub/net/access/access.h"
#include "hub/net/health/host_state.h"
#include "hub/net/http/transport.h"
#include "hub/registry/migrations.h"
#include "hub/registry/postgres_database.h"
#include "hub/registry/state_files.h"
#include "hub/registry/state_lock.h"

namespace moex {
namespace {

namespace fs = std::filesystem;
using Grade = Finding::Grade;

// Reads every file of the package through the functions that serve it, which refuse a damaged blob.
Status check_bytes(const ModelPackage& package) {
    std::uint64_t done = 0, all = 0;
    for (const ModelPackage::File& file : package.files()) all += file.size_bytes;
    ProgressBar bar("checked", false);
    for (const ModelPackage::File& file : package.files()) {
        const bool is_blob = file.name.starts_with("weights/");
        if (!is_blob || package.has_blob(file.sha256)) {
            MOEX_ASSIGN(bytes, package.file(file.sha256));
            if (!is_blob && sha256(bytes) != file.sha256)
                return Error{ErrorCode::hash_mismatch,
                             text((package.directory() / file.name).string(),
                                  ": its SHA-256 is not the one of manifest.json; damaged")};
        }
        done += file.size_bytes;
        bar.show(done, all, "");
    }
    return {};
}

Finding check_model(const Settings& settings, const ServeSettings& serve) {
    const auto model = load_model(
        settings, [](std::string_view) {}, LoadParts::texts);
    if (!model.ok())
        return {Grade::wrong, model.error().message,
                "moex-hub pack makes a package; moex-hub verify says what is damaged"};
    const ModelPackage& package = *model->package;
    // A file that changes while it is checked is an error here, and does not end the process.
    package.on_changed_bytes([](const Error&) {});
    if (const Status whole = check_bytes(package); !whole.ok())
        return {Grade::wrong, whole.error().message,
                "copy the file here again, or pack the model anew; moex-hub verify names the "
                "next damaged file"};

    const std::uint32_t missing = package.num_missing_blobs();
    if (missing == 0)
        return {Grade::ok, text(package.name(), ", all of its ", package.num_blobs(),
                                " expert blobs, with the right bytes")};
    const std::string words = text(package.name(), ": ", missing, " of ", package.num_blobs(),
                                   " expert blobs are not here");
    if (serve.contributors.backend == ServeBackend::local)
        return {Grade::wrong, text(words, ", and --backend local computes on this machine"),
                "copy the blobs here, or pack the model here"};
    return {Grade::note, words,
            "serve /weights at this address from another machine, or pack the model here"};
}

// Checks the files of the certificate as the server reads them, the end of the certificate, and
// that the key is private.
Finding check_certificate(const fs::path& certificate, const fs::path& key) {
    std::int64_t end_s = 0;
    try {
        end_s = net::certificate_end(*net::make_tls_context(certificate.string(), key.string()));
    } catch (const std::runtime_error& failure) {
        return {Grade::wrong, failure.what(),
                "moex-hub cert makes both; --tls-cert and --tls-key name them"};
    }

    const auto now_s = static_cast<std::int64_t>(std::time(nullptr));
    const char* const renew = "renew it; kill -HUP lets a running hub read it again";
    const std::string file = certificate.string();
    const auto stage = net::certificate_stage({.certificate_end_s = end_s}, now_s);
    if (stage == net::CertificateStage::expired)
        return {Grade::wrong, text(file, " has expired"), renew};
    const std::int64_t days = (end_s - now_s) / 86'400;
    if (stage != net::CertificateStage::good)
        return {Grade::note, text(file, " expires in ", days, " days"), renew};

    struct stat info {};
    if (::stat(key.c_str(), &info) == 0 && (info.st_mode & 077) != 0)
        return {Grade::note, text(key.string(), ": other users may read the private key"),
                text("chmod 600 ", key.string())};
    return {Grade::ok, text(file, " holds for ", days, " days")};
}

Finding check_tls(const net::ServerOptions& options) {
    if (const Status allowed = net::check_address(options); !allowed.ok())
        return {Grade::wrong, allowed.error().message,
                "moex-hub cert makes a certificate; or a proxy that speaks TLS"};
    if (!options.tls_cert.empty()) return check_certificate(options.tls_cert, options.tls_key);
    if (net::is_loopback_address(options.listen_address))
        return {Grade::ok, "not used; loopback needs none"};
    return {Grade::note, "not used beyond loopback: tabs have WebGPU on secure pages only",
            "moex-hub cert makes a certificate; or a proxy that speaks TLS"};
}

Finding check_state(const Result<fs::path>& folder) {
    if (!folder.ok()) return {Grade::wrong, folder.error().message, "--state DIR"};
    if (const Status right = check_state_directory(*folder); !right.ok())
        return {Grade::wrong, right.error().message,
                "--state names a folder of the hub's own user"};

    std::error_code failure;
    fs::path there = fs::absolute(*folder, failure);
    while (!fs::exists(there, failure) && there.has_relative_path()) there = there.parent_path();
    struct statvfs disk {};
    if (::statvfs(there.c_str(), &disk) != 0)
        return {Grade::wrong, text(there.string(), ": its disk does not answer"), "mount it"};
    const std::uint64_t bytes = std::uint64_t{disk.f_bavail} * disk.f_frsize;
    const std::string shown = text(folder->string(), ", ", bytes_text(bytes), " free");
    if (net::is_disk_full({.state_free_bytes = bytes}))
        return {Grade::wrong, shown, "make room: keys and counts have to be written"};
    if (const auto holder = StateLock::holder(*folder))
        return {Grade::note, text(shown, "; process ", holder->process_id, " serves it now"),
                "nothing, if that is this hub; a second hub needs a --state of its own"};
    return {Grade::ok, shown};
}

Finding check_store(const std::string& url) {
    const char* const how =
        "start the server, and name the file with its password in PGPASSFILE; serve --help-all";
    const auto address = PostgresAddress::parse(url);
    if (!address.ok()) return {Grade::wrong, address.error().message, "change --store"};
    const auto database = PostgresDatabase::connect(*address);
    if (!database.ok()) return {Grade::wrong, database.error().message, how};
    if (const Status known = check_schema(**database, postgres_migrations()); !known.ok())
        return {Grade::wrong, text(address->shown(), ": ", known.error().message),
                "update this hub"};
    return {Grade::ok, text(address->shown(), " answers")};
}

}  // namespace

std::vector<CheckedThing> check_serve(const Settings& settings) {
    const auto wrong_settings = [](const Error& error) -> std::vector<CheckedThing> {
        return {{"settings", {Grade::wrong, error.message, "change the options that it names"}}};
    };
    const auto serve = read_serve_settings(settings);
    if (!serve.ok()) return wrong_settings(serve.error());
    const auto user = serving_user(serve->address);
    if (!user.ok()) return wrong_settings(user.error());
    const Finding tls = check_tls(server_options_of(*serve));  // root reads the private key

    std::optional<ActingAs> acting;
    if (*user) acting.emplace(**user);
    std::vector<CheckedThing> things{
        {"settings", {Grade::ok, "no setting contradicts another"}},
        {"model", check_model(settings, *serve)},
        {"TLS", tls},
        {"state", check_state(serving_state_folder(serve->address, *user))}};
    if (const std::string& url = serve->address.store_url; !url.empty())
        things.push_back({"store", check_store(url)});
    return things;
}

}  // namespace moex
