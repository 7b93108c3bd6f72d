#include "tests/hub/net/hub_fixture.h"

#include <stdlib.h>

#include <ctime>
#include <stdexcept>

#include "hub/base/log.h"
#include "tests/hub/net/raw_client.h"
#include "tests/support/repository.h"

namespace moex::net {
namespace {

template <class Value>
Value must(Result<Value> result) {
    if (!result.ok()) throw std::runtime_error(result.error().message);
    return std::move(result).value();
}

}  // namespace

TestHub::TestHub(TestHubOptions options) {
    set_log(LogLevel::error);
    std::string pattern = (std::filesystem::temp_directory_path() / "moex-net-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    state_ = pattern;
    const auto demo = repository() / "static/models/demo";
    package_ = must(ModelPackage::open(options.package.empty() ? demo : options.package));
    registry_ = must(Registry::open(state_));
    threads_ = std::make_unique<ThreadPool>(2);
    options.server.listen_port = 0;
    options.server.handle_signals = false;
    options.server.signing_key = std::make_shared<const SigningKey>(
        must(SigningKey::open(state_ / "signing-key")));
    server_ = std::make_unique<Server>(options.server, package_, *registry_);

    const ModelConfig& config = package_->config();
    SwarmOptions& swarm = options.swarm;
    swarm.model_name = package_->name();
    swarm.package_sha256 = package_->manifest_sha256();
    swarm.limits = {.hidden_size = config.hidden_size,
                    .num_layers = config.num_layers,
                    .num_experts = config.num_experts};
    swarm.expert_shape = package_->expert_shape();
    swarm.top_k = config.top_k;
    swarm.workers_per_address_max = options.server.workers_per_address_max;
    swarm.expert_blob_bytes = package_->expert_blob_bytes();
    swarm.layer_is_moe = config.layer_is_moe();
    swarm.blob_hash = [package = package_](std::uint32_t layer, std::uint32_t expert) {
        return package->blob_hash(layer, expert);
    };
    swarm.token_ok = [registry = registry_.get()](std::string_view token) {
        return registry->join_allowed(token);
    };
    swarm.nonce_of = [registry = registry_.get()](WorkerId worker) {
        return registry->nonces().for_worker(worker);
    };
    swarm.closed_for = [registry = registry_.get()](std::string_view worker_key) -> Duration {
        return std::chrono::seconds(registry->bans().left_s(worker_key, std::time(nullptr)));
    };
    local_ = std::make_unique<LocalExperts>(package_, *threads_, swarm.rounding);
    swarm_ = std::make_unique<SwarmBackend>(
        swarm, server_->swarm_host(), local_.get(),
        [server = server_.get()](const WorkerEvent& event) { server->on_worker_event(event); });

    decoder_ = must(Decoder::create(package_, *threads_));
    engine_ = std::make_unique<Engine>(*decoder_, *swarm_, EngineOptions{});
    std::shared_ptr<const Tokenizer> tokenizer = must(
        Tokenizer::load(*package_->tokenizer_file("tokenizer.json"),
                        package_->tokenizer_file("tokenizer_config.json").value_or("")));
    api_ = std::make_unique<Api>(package_, tokenizer, nullptr, *engine_, options.api,
                                 server_->api_observer());
    server_->attach(*swarm_, *engine_, *api_);
    running_ = std::thread([this] { server_->run(2); });
}

TestHub::~TestHub() {
    if (running_.joinable()) {
        server_->stop();
        server_->stop();
        running_.join();
    }

    api_.reset();
    engine_.reset();
    decoder_.reset();
    swarm_.reset();
    local_.reset();
    server_.reset();
    registry_.reset();
    std::filesystem::remove_all(state_);
}

void TestHub::wait_stopped() { running_.join(); }
bool TestHub::healthy() { return fetch(port(), "GET", "/health").status == 200; }

}  // namespace moex::net
