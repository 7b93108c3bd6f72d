#include <fstream>

#include "hub/base/clock.h"
#include "hub/commands/chat/chat_source.h"
#include "hub/commands/chat/event_stream.h"
#include "hub/fetch/web_client.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

using nlohmann::json;

constexpr std::size_t error_bytes_max = 64u << 10;
constexpr std::uint32_t stall_s = 900;  // a long prompt may take minutes before its first token

// Returns the sentence of an error body {"error": {"message": ...}}, or the status alone.
Error error_of_body(const WebAddress& address, int status, const std::string& body) {
    const auto parsed = parse_strict_json(body, "answer");
    std::string sentence;
    if (parsed.ok() && parsed->is_object() && parsed->contains("error") &&
        (*parsed)["error"].is_object() && (*parsed)["error"].contains("message") &&
        (*parsed)["error"]["message"].is_string())
        sentence = text(": ", (*parsed)["error"]["message"].get<std::string>());
    const char* const advice = status == 401 || status == 403 ? "; --key-file names a key" : "";
    return {ErrorCode::unavailable, text(address.origin, " answers ", status, sentence, advice)};
}

class HubChat : public ChatSource {
  public:
    HubChat(WebAddress base, std::string key, std::string ca_file, const Settings& settings)
        : base_(std::move(base)),
          settings_(settings),
          client_({.stall_s = stall_s, .ca_file = std::move(ca_file), .stop = &stop_}) {
        while (base_.url.ends_with('/')) base_.url.pop_back();
        if (base_.url.ends_with("/v1")) base_.url.resize(base_.url.size() - 3);
        if (!key.empty()) headers_.push_back(text("Authorization: Bearer ", key));
    }

    // Asks for the name of the hub's model.
    Status connect() {
        std::string body;
        MOEX_ASSIGN(head, ask("/v1/models", nullptr, [&body](ByteView bytes) {
                        body.append(as_text_view(bytes));
                        return body.size() <= error_bytes_max;
                    }));
        if (head.status != 200) return error_of_body(base_, head.status, body);
        MOEX_ASSIGN(models, parse_strict_json(body, text(base_.origin, "/v1/models")));
        const bool has_model = models.is_object() && models.contains("data") &&
                               models["data"].is_array() && !models["data"].empty() &&
                               models["data"][0].is_object() &&
                               models["data"][0].value("id", json()).is_string();
        if (!has_model)
            return Error{ErrorCode::bad_field, text(base_.origin, "/v1/models lists no model")};
        model_ = models["data"][0]["id"].get<std::string>();
        return {};
    }

    std::string model_name() const override { return model_; }

    Result<ChatAnswer> answer(const nlohmann::ordered_json& messages,
                              const OnText& on_text) override {
        const std::string body = request_of(messages).dump(
            -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
        ChatAnswer answer;
        EventStream events;
        std::string refused;
        std::optional<Error> error;
        TimePoint first_at{};
        bool is_done = false;
        const auto on_event = [&](std::string_view data) {
            is_done = data == "[DONE]";
            if (is_done) return true;
            return take_event(data, answer, first_at, error, on_text);
        };

        int status = 0;
        stop_ = false;
        const std::string url = "/v1/chat/completions";
        const auto head = client_.ask(
            request_for(url, &body),
            [&status](const WebHead& now) {
                status = now.status;
                return true;
            },
            [&](ByteView bytes) {
                if (status == 200) return events.push(as_text_view(bytes), on_event);
                refused.append(as_text_view(bytes));
                return refused.size() <= error_bytes_max;
            });
        if (first_at != TimePoint{}) answer.seconds = to_ms(now_steady() - first_at) / 1e3;
        answer.is_stopped = stop_.exchange(false);
        if (answer.is_stopped) return answer;
        if (!head.ok()) return head.error();
        if (status != 200) return error_of_body(base_, status, refused);
        if (error) return *error;
        if (!is_done)
            return Error{ErrorCode::unavailable,
                         text(base_.origin, ": the answer ended before its last event")};
        return answer;
    }

    void stop() override { stop_ = true; }

  private:
    WebRequest request_for(const std::string& path, const std::string* body) const {
        WebRequest request{.address = base_, .headers = headers_, .body = body};
        request.address.url += path;
        return request;
    }
    Result<WebHead> ask(const std::string& path, const std::string* body,
                        const WebClient::OnBody& on_body) {
        return client_.ask(
            request_for(path, body), [](const WebHead&) { return true; }, on_body);
    }

    nlohmann::ordered_json request_of(const nlohmann::ordered_json& messages) const {
        nlohmann::ordered_json request{{"model", model_}, {"messages", messages}, {"stream", true}};
        if (settings_.given("max-tokens")) request["max_tokens"] = settings_.number("max-tokens");
        for (const auto& [setting, name] :
             {std::pair("temperature", "temperature"), std::pair("top-p", "top_p")})
            if (!settings_.text(setting).empty())
                request[name] = std::stod(settings_.text(setting));
        if (const std::string& seed = settings_.text("seed"); !seed.empty())
            request["seed"] = std::stoull(seed);
        return request;
    }

    // Takes {"choices": [{"delta": {"content": "..."}, "finish_reason": null}]} or {"error": ...}.
    bool take_event(std::string_view data, ChatAnswer& answer, TimePoint& first_at,
                    std::optional<Error>& error, const OnText& on_text) const {
        const auto event = parse_strict_json(data, text(base_.origin, ": event"));
        if (!event.ok() || !event->is_object()) {
            error = event.ok() ? Error{ErrorCode::bad_field, "an event is no object"}
                               : event.error();
            return false;
        }
        if (event->contains("error")) {
            error = error_of_body(base_, 200, std::string(data));
            return false;
        }
        const json choices = event->value("choices", json::array());
        if (!choices.is_array() || choices.empty() || !choices[0].is_object()) return true;

        const json reason = choices[0].value("finish_reason", json());
        if (reason == "length") answer.is_cut = true;
        const json delta = choices[0].value("delta", json::object());
        const json content = delta.is_object() ? delta.value("content", json()) : json();
        if (!content.is_string()) return true;
        if (first_at == TimePoint{}) first_at = now_steady();
        ++answer.num_tokens;
        return on_text(content.get_ref<const std::string&>());
    }

    WebAddress base_;
    const Settings& settings_;
    std::vector<std::string> headers_;
    std::string model_;
    std::atomic<bool> stop_ = false;
    WebClient client_;  // after the switch that it reads
};

}  // namespace

Result<std::unique_ptr<ChatSource>> open_hub_chat(const Invocation& invocation,
                                                  const std::string& url) {
    const bool is_open = invocation.argument("--insecure-http") != nullptr;
    auto base = parse_web_address(url, is_open ? PlainHttp::anywhere : PlainHttp::loopback_only);
    if (!base.ok())
        return Error{base.error().code,
                     text("--url: ", base.error().message, is_open ? "" : ", or --insecure-http")};

    std::string key;
    if (const std::string* const path = invocation.argument("--key-file")) {
        std::ifstream file(*path);
        if (!(file >> key)) return Error{ErrorCode::io_error, text(*path, ": no key can be read")};
    }
    const std::string* const ca_file = invocation.argument("--ca");
    auto chat = std::make_unique<HubChat>(*std::move(base), key, ca_file ? *ca_file : "",
                                          invocation.settings);
    MOEX_TRY(chat->connect());
    return std::unique_ptr<ChatSource>(std::move(chat));
}

}  // namespace moex
