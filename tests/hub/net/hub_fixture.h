// A whole hub with the demo package on a free port. All parts are real, as a client meets them.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "hub/engine/decoder.h"
#include "hub/engine/local_experts.h"
#include "hub/net/server.h"
#include "protocol/bytes.h"

namespace moex::net {

// Header lines for requests.
inline const std::string json_type = "Content-Type: application/json\r\n";
inline std::string bearer(const std::string& key) {
    return "Authorization: Bearer " + key + "\r\n";
}

inline std::string as_string(const Bytes& bytes) { return std::string(as_text_view(bytes)); }

struct TestHubOptions {
    ServerOptions server;
    SwarmOptions swarm;  // the fixture fills in the model fields from the package
    ApiOptions api;
    std::filesystem::path package;  // empty: the demo
};

class TestHub {
  public:
    explicit TestHub(TestHubOptions options = {});
    ~TestHub();  // stops and waits
    std::uint16_t port() const { return server_->port(); }
    Server& server() { return *server_; }
    Registry& registry() { return *registry_; }
    const std::filesystem::path& state_folder() const { return state_; }
    const ModelPackage& package() const { return *package_; }
    std::string token() { return registry_->join_token().value(); }
    // Header lines of an upgrade request: the Origin that a page of this hub sends, and the Bearer
    // of a worker without a page.
    std::string page_origin() const {
        return "Origin: http://127.0.0.1:" + std::to_string(port()) + "\r\n";
    }
    std::string bearer() { return "Authorization: Bearer " + token() + "\r\n"; }
    void wait_stopped();  // run() has returned
    bool healthy();

  private:
    std::filesystem::path state_;
    std::shared_ptr<const ModelPackage> package_;
    std::unique_ptr<Registry> registry_;
    std::unique_ptr<ThreadPool> threads_;
    std::unique_ptr<Server> server_;
    std::unique_ptr<LocalExperts> local_;
    std::unique_ptr<SwarmBackend> swarm_;
    std::unique_ptr<Decoder> decoder_;
    std::unique_ptr<Engine> engine_;
    std::unique_ptr<Api> api_;
    std::thread running_;
};

}  // namespace moex::net
