// The fixture of API tests: a real engine on the demo package, and a responder that records the
// answer, its events and its headers.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hub/api/api.h"
#include "hub/engine/decoder.h"
#include "hub/engine/local_experts.h"
#include "tests/support/repository.h"

namespace moex::test {

using Json = nlohmann::ordered_json;

class CapturedAnswer : public HttpResponder {
  public:
    using HttpResponder::HttpResponder;
    void respond(HttpResponse response) override {
        if (response.on_sent) response.on_sent();
        const std::lock_guard lock(mutex_);
        EXPECT_FALSE(done_) << "answered twice";
        response_ = std::move(response);
        done_ = true;
        wake_.notify_all();
    }
    void expect_stream() override {}
    void begin_stream(const std::string& stream_id) override {
        const std::lock_guard lock(mutex_);
        EXPECT_FALSE(streaming_ || done_);
        stream_id_ = stream_id;
        streaming_ = true;
    }
    void send_event(StreamEvent event, std::function<void()> on_sent) override {
        if (on_sent) on_sent();
        const std::lock_guard lock(mutex_);
        EXPECT_TRUE(streaming_ && !done_);
        names_.push_back(std::move(event.name));
        events_.push_back(std::move(event.data));
        wake_.notify_all();
    }
    void end_stream() override {
        const std::lock_guard lock(mutex_);
        EXPECT_TRUE(streaming_ && !done_);
        done_ = true;
        wake_.notify_all();
    }
    void on_disconnect(std::function<void()> handler) override {
        const std::lock_guard lock(mutex_);
        on_disconnect_ = std::move(handler);
    }

    const CapturedAnswer& wait() {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return done_; });
        return *this;
    }
    void wait_for_events(std::size_t count) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return done_ || events_.size() >= count; });
    }
    void disconnect() {
        std::function<void()> handler;
        {
            const std::lock_guard lock(mutex_);
            handler = on_disconnect_;
        }
        handler();
    }
    // The following functions may be called once wait() has returned.
    unsigned status() const { return response_.status; }
    const HttpResponse& response() const { return response_; }
    Json json() const { return Json::parse(response_.body); }
    bool streamed() const {
        const std::lock_guard lock(mutex_);
        return streaming_;
    }
    const std::vector<std::string>& events() const { return events_; }
    const std::vector<std::string>& names() const { return names_; }  // of them
    const std::string& stream_id() const { return stream_id_; }
    std::vector<Json> chunks() const {
        std::vector<Json> out;
        for (const std::string& event : events_)
            if (event != "[DONE]") out.push_back(Json::parse(event));
        return out;
    }

  private:
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    std::function<void()> on_disconnect_;
    HttpResponse response_;
    std::vector<std::string> events_, names_;
    std::string stream_id_;
    bool streaming_ = false, done_ = false;
};

// The demo model, opened once for each test program.
struct DemoModel {
    std::shared_ptr<const ModelPackage> package;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::shared_ptr<const ChatTemplate> chat_template;
    ThreadPool threads{2};
    std::unique_ptr<Decoder> decoder;
    std::unique_ptr<LocalExperts> local;

    static DemoModel& get() {
        static DemoModel model;
        return model;
    }

  private:
    DemoModel() {
        package = ModelPackage::open(repository() / "static/models/demo").value();
        tokenizer = Tokenizer::load(package->tokenizer_file("tokenizer.json").value(),
                                    package->tokenizer_file("tokenizer_config.json").value())
                        .value();
        chat_template = ChatTemplate::from_tokenizer_config(
                            package->tokenizer_file("tokenizer_config.json").value())
                            .value();
        decoder = Decoder::create(package, threads).value();
        local = std::make_unique<LocalExperts>(package, threads,
                                               ExpertRounding{.deterministic = true});
    }
};

// Holds every round of expert calls until release(), so that a test decides when the model
// continues.
class GatedExperts : public ExpertBackend {
  public:
    explicit GatedExperts(ExpertBackend& inner) : inner_(inner) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return open_; });
        if (failing_) return std::make_unique<Failing>();
        return inner_.submit(batch);
    }
    const char* name() const override { return "gated"; }
    void release() { set(true, false); }
    void hold() { set(false, false); }
    void fail() { set(true, true); }  // from now on nobody answers

  private:
    struct Failing : ExpertRound {
        Result<ExpertAnswer> wait(std::stop_token) override {
            return Error{ErrorCode::unavailable, "no worker holds this expert"};
        }
    };
    void set(bool open, bool failing) {
        const std::lock_guard lock(mutex_);
        open_ = open;
        failing_ = failing;
        wake_.notify_all();
    }
    ExpertBackend& inner_;
    std::mutex mutex_;
    std::condition_variable wake_;
    bool open_ = true, failing_ = false;
};

class ApiTest : public testing::Test {
  protected:
    void SetUp() override { make({}, {}); }
    void TearDown() override {
        experts_.release();
        api_.reset();
        engine_.reset();
    }
    void make(EngineOptions engine_options, ApiOptions api_options, ApiObserver observer = {}) {
        api_.reset();
        engine_.reset();
        engine_ = std::make_unique<Engine>(*model_.decoder, experts_, engine_options);
        api_ = std::make_unique<Api>(model_.package, model_.tokenizer, model_.chat_template,
                                     *engine_, api_options, std::move(observer));
    }
    using Handler = void (Api::*)(HttpRequest, Api::Responder);
    std::shared_ptr<CapturedAnswer> start(Handler handler, std::string body,
                                          std::string rest = {}) {
        auto answer = std::make_shared<CapturedAnswer>(dialect_);
        HttpRequest request;
        request.rest = std::move(rest);
        request.body = std::move(body);
        request.received_at = now_steady();
        ((*api_).*handler)(std::move(request), answer);
        return answer;
    }
    std::shared_ptr<CapturedAnswer> ask(Handler handler, const Json& body) {
        auto answer = start(handler, body.dump());
        answer->wait();
        return answer;
    }
    static Json chat(std::string_view content, Json extra = Json::object()) {
        Json body{{"messages", {{{"role", "user"}, {"content", content}}}},
                  {"temperature", 0},
                  {"max_tokens", 12}};
        body.update(extra);
        return body;
    }
    static constexpr Handler chat_path = &Api::chat;
    static constexpr Handler text_path = &Api::complete;

    Dialect dialect_ = Dialect::openai;  // dialect of the routes that the test requests
    DemoModel& model_ = DemoModel::get();
    GatedExperts experts_{*model_.local};
    std::unique_ptr<Engine> engine_;
    std::unique_ptr<Api> api_;
};

}  // namespace moex::test
