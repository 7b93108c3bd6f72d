// Bodies of malicious or mistaken clients: each gets a 4xx that names the wrong field, and the hub
// continues to serve.
#include "tests/hub/api/api_fixture.h"

#include <random>

namespace moex::test {
namespace {

std::string repeated(std::string_view part, std::size_t count) {
    std::string out;
    for (std::size_t i = 0; i < count; ++i) out += part;
    return out;
}

std::string object_with_keys(std::size_t count) {
    std::string out = "{";
    for (std::size_t i = 0; i < count; ++i)
        out += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":0";
    return out + "}";
}

// Makes the body of a chat request with one additional field.
std::string with(const std::string& field) {
    return R"({"messages":[{"role":"user","content":"Hi"}],)" + field + "}";
}

struct HostileBody {
    std::string body;
    unsigned status;
    std::string param;  // empty: null
};
const HostileBody hostile_bodies[] = {
    {"", 400, ""},
    {"null", 400, ""},
    {"7", 400, ""},
    {"\"text\"", 400, ""},
    {"[{}]", 400, ""},
    {"[]", 400, ""},
    {"{", 400, ""},
    {"{\"messages\"", 400, ""},
    {"{}", 400, "messages"},
    {R"({"messages":null})", 400, "messages"},
    {R"({"messages":{}})", 400, "messages"},
    {R"({"messages":[]})", 400, "messages"},
    {R"({"messages":"Hi"})", 400, "messages"},
    {R"({"messages":[null]})", 400, "messages[0]"},
    {R"({"messages":[{}]})", 400, "messages[0].role"},
    {R"({"messages":[[]]})", 400, "messages[0]"},
    {R"({"messages":[{"role":123,"content":"x"}]})", 400, "messages[0].role"},
    {R"({"messages":[{"role":"root","content":"x"}]})", 400, "messages[0].role"},
    {R"({"messages":[{"role":"user"}]})", 400, "messages[0].content"},
    {R"({"messages":[{"role":"user","content":7}]})", 400, "messages[0].content"},
    {R"({"messages":[{"role":"user","content":null}]})", 400, "messages[0].content"},
    {R"({"messages":[{"role":"user","content":[7]}]})", 400, "messages[0].content[0]"},
    {R"({"messages":[{"role":"user","content":[{"type":"image_url",)"
     R"("image_url":{"url":"data:,"}}]}]})",
     400, "messages[0].content[0].type"},
    {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", 400,
     "messages[0].content[0].text"},
    {R"({"messages":[{"role":"robot","content":"x"}]})", 400, "messages[0].role"},
    {"{\"messages\":" + repeated("[", 1000) + repeated("]", 1000) + "}", 400, ""},
    {repeated("{\"a\":", 1000) + "1" + repeated("}", 1000), 400, ""},
    {repeated("[", 100000), 400, ""},
    {with("\"metadata\":" + object_with_keys(4097)), 400, ""},
    // An earlier parser took a minute for this body, because it searched the members of an object
    // in a list.
    {with("\"temperature\":-1,\"metadata\":[" + repeated("{},", 300'000) + "{}]"), 400,
     "temperature"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"" + repeated("x", 10 << 20) + "\"}]}", 413,
     ""},
    {"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}", 400, ""},
    {with(R"("temperature":1e999)"), 400, ""},
    {with(R"("temperature":"hot")"), 400, "temperature"},
    {with(R"("temperature":-1)"), 400, "temperature"},
    {with(R"("temperature":2.5)"), 400, "temperature"},
    {with(R"("top_p":1.5)"), 400, "top_p"},
    {with(R"("top_k":-2)"), 400, "top_k"},
    {with(R"("min_p":2)"), 400, "min_p"},
    {with(R"("max_tokens":0)"), 400, "max_tokens"},
    {with(R"("max_tokens":-5)"), 400, "max_tokens"},
    {with(R"("max_tokens":1.5)"), 400, "max_tokens"},
    {with(R"("max_tokens":99999999999999999999)"), 400, "max_tokens"},
    {with(R"("max_completion_tokens":"many")"), 400, "max_completion_tokens"},
    {with(R"("n":0)"), 400, "n"},
    {with(R"("n":9)"), 400, "n"},
    {with(R"("n":true)"), 400, "n"},
    {with(R"("stream":"yes")"), 400, "stream"},
    {with(R"("stream_options":{"include_usage":true})"), 400, "stream_options"},
    {with(R"("stream":true,"stream_options":7)"), 400, "stream_options"},
    {with(R"("stream":true,"stream_options":{"include_usage":1})"), 400,
     "stream_options.include_usage"},
    {with(R"("stop":7)"), 400, "stop"},
    {with("\"stop\":[\"" + repeated("x", 1025) + "\"]"), 400, "stop"},
    {with("\"stop\":[\"a\"" + repeated(",\"" + repeated("y", 1000) + "\"", 17) + "]"), 400, "stop"},
    {with(R"("stop_token_ids":[99999999])"), 400, "stop_token_ids"},
    {with(R"("stop_token_ids":7)"), 400, "stop_token_ids"},
    {with(R"("min_tokens":"3")"), 400, "min_tokens"},
    {with(R"("bad_words":[1])"), 400, "bad_words"},
    {with(R"("suppress_tokens":["a"])"), 400, "suppress_tokens"},
    {with(R"("chat_template":"x")"), 400, "chat_template"},
    {with(R"("format":"json")"), 400, "format"},
    {with(R"("text":{"format":{"type":"json_object"}})"), 400, "text.format"},
    {with(R"("thread":{"type":"create"})"), 400, "thread"},
    {with(R"("previous_response_id":"r")"), 400, "previous_response_id"},
    {with(R"("structured_outputs":7)"), 400, "structured_outputs"},
    {with(R"("structured_outputs":{"json":"{"})"), 400, "structured_outputs.json"},
    {with(R"("structured_outputs":{"regex":"a","choice":["b"]})"), 400,
     "structured_outputs.choice"},
    {with(R"("structured_outputs":{"structural_tag":"{}"})"), 400,
     "structured_outputs.structural_tag"},
    {with(R"("guided_choice":[])"), 400, "guided_choice"},
    {with(R"("regex":"(a")"), 400, "regex"},
    {with(R"("ebnf":"root ::= x")"), 400, "ebnf"},
    {with(R"("stop":[7])"), 400, "stop"},
    {with(R"("seed":"x")"), 400, "seed"},
    {with(R"("seed":1.5)"), 400, "seed"},
    {with(R"("logprobs":3)"), 400, "logprobs"},
    {with(R"("top_logprobs":3)"), 400, "top_logprobs"},
    {with(R"("logprobs":true,"top_logprobs":21)"), 400, "top_logprobs"},
    {with(R"("presence_penalty":3)"), 400, "presence_penalty"},
    {with(R"("frequency_penalty":"x")"), 400, "frequency_penalty"},
    {with(R"("repeat_penalty":0)"), 400, "repeat_penalty"},
    {with(R"("logit_bias":7)"), 400, "logit_bias"},
    {with(R"("logit_bias":"x")"), 400, "logit_bias"},
    {with(R"("logit_bias":[1])"), 400, "logit_bias"},
    {with(R"("logit_bias":[[]])"), 400, "logit_bias"},
    {with(R"("logit_bias":[[1,2,3]])"), 400, "logit_bias"},
    {with(R"("logit_bias":[[null,1]])"), 400, "logit_bias"},
    {with(R"("logit_bias":[[-1,1]])"), 400, "logit_bias"},
    {with(R"("logit_bias":[[1.5,1]])"), 400, "logit_bias"},
    {with(R"("logit_bias":[[99999999,1]])"), 400, "logit_bias"},
    {with(R"("logit_bias":[["x",101]])"), 400, "logit_bias"},
    {with(R"("logit_bias":[["x",true]])"), 400, "logit_bias"},
    {with(R"("logit_bias":[["",1]])"), 400, "logit_bias"},
    {with(R"("logit_bias":{"x":"much"})"), 400, "logit_bias"},
    {with(R"("logit_bias":{"99999999":1})"), 400, "logit_bias"},
    {with(R"("logit_bias":{"99999999999999999999999":1})"), 400, "logit_bias"},
    {with(R"("logit_bias":{"1":101})"), 400, "logit_bias"},
    {with(R"("logit_bias":{"":1})"), 400, "logit_bias"},
    {with(R"("user":7)"), 400, "user"},
    {with(R"("model":7)"), 400, "model"},
    {with(R"("model":"other")"), 404, "model"},
    {with(R"("tools":[{"type":"function"}])"), 400, "tools[0]"},
    {with(R"("tool_choice":"required")"), 400, "tool_choice"},
    {with(R"("functions":[{"name":"f"}])"), 400, "functions"},
    {with(R"("response_format":{"type":"xml"})"), 400, "response_format"},
    {with(R"("response_format":{"type":"json_schema"})"), 400, "response_format.json_schema"},
    {with(R"("response_format":{"type":"json_schema","json_schema":{"schema":7}})"), 400,
     "response_format.json_schema.schema"},
    {with(R"("json_schema":{"type":"array","uniqueItems":true})"), 400, "json_schema"},
    {with(R"("json_schema":{"const":"0123456789"},"max_tokens":11)"), 400, "max_tokens"},
    {with(R"("response_format":7)"), 400, "response_format"},
    {with(R"("modalities":["text","audio"])"), 400, "modalities"},
    {with(R"("audio":{"voice":"a"})"), 400, "audio"},
    {with(R"("chat_template_kwargs":7)"), 400, "chat_template_kwargs"},
    {with(R"("reasoning_effort":"much")"), 400, "reasoning_effort"},
    {with(R"("reasoning_effort":7)"), 400, "reasoning_effort"},
    {with(R"("prompt_logprobs":-1)"), 400, "prompt_logprobs"},
    {with(R"("prompt_logprobs":21)"), 400, "prompt_logprobs"},
    {with(R"("prompt_logprobs":1,"stream":true)"), 400, "stream"},
    {with(R"("grammar":"root ::= x")"), 400, "grammar"},
};

TEST_F(ApiTest, HostileBodiesAreRefusedByName) {
    for (const HostileBody& one : hostile_bodies) {
        SCOPED_TRACE(one.body.substr(0, 120));
        const TimePoint started_at = now_steady();
        const auto answer = start(chat_path, one.body);
        answer->wait();
        RecordProperty("slowest_ms", static_cast<int>(to_ms(now_steady() - started_at)));
        EXPECT_EQ(answer->status(), one.status);
        const Json error = answer->json()["error"];
        EXPECT_FALSE(error["message"].get<std::string>().empty());
        EXPECT_TRUE(error["type"].is_string());
        EXPECT_EQ(error["param"], one.param.empty() ? Json() : Json(one.param)) << error.dump();
    }

    EXPECT_EQ(ask(chat_path, chat("Hi", {{"max_tokens", 1}}))->status(), 200u) << "still serving";
}

TEST_F(ApiTest, HostileCompletionBodiesAreRefusedByName) {
    const struct {
        std::string body;
        std::string param;
    } cases[] = {
        {"{}", "prompt"},
        {R"({"prompt":null})", "prompt"},
        {R"({"prompt":7})", "prompt"},
        {R"({"prompt":[]})", "prompt"},
        {R"({"prompt":[[]]})", "prompt"},
        {R"({"prompt":[-1]})", "prompt"},
        {R"({"prompt":[99999999]})", "prompt"},
        {R"({"prompt":[1,"a"]})", "prompt"},
        {R"({"prompt":[1.5]})", "prompt"},
        {R"({"prompt":{"a":1}})", "prompt"},
        {R"({"prompt":""})", "prompt"},
        {R"({"prompt":["a","b","c"],"n":4})", "n"},
        {R"({"prompt":["a","b","c","d","e","f","g","h","i"]})", "prompt"},
        {R"({"prompt":"a","logprobs":21})", "logprobs"},
        {R"({"prompt":"a","logprobs":true})", "logprobs"},
        {R"({"prompt":"a","echo":7})", "echo"},
        {R"({"prompt":"a","echo":true,"logprobs":1,"stream":true})", "stream"},
        {R"({"prompt":"a","suffix":"b"})", "suffix"},
        {R"({"prompt":"a","best_of":3})", "best_of"},
    };
    for (const auto& one : cases) {
        SCOPED_TRACE(one.body);
        const auto answer = start(text_path, one.body);
        EXPECT_EQ(answer->wait().status(), 400u) << answer->response().body;
        EXPECT_EQ(answer->json()["error"]["param"], one.param) << answer->response().body;
    }
}

TEST_F(ApiTest, HostileTokenizerBodiesAreRefused) {
    for (const char* body :
         {"", "null", "{}", R"({"content":7})", R"({"tokens":"x"})", R"({"tokens":[-1]})",
          R"({"tokens":[99999999]})", R"({"tokens":[null]})"}) {
        EXPECT_EQ(start(&Api::tokenize, body)->wait().status(), 400u) << body;
        EXPECT_EQ(start(&Api::detokenize, body)->wait().status(), 400u) << body;
    }
}

TEST_F(ApiTest, UnknownFieldsAndHarmlessOnesAreIgnored) {
    const auto answer = ask(chat_path, chat("Hi", {{"max_tokens", 1},
                                                   {"store", false},
                                                   {"metadata", {{"a", "b"}}},
                                                   {"service_tier", "auto"},
                                                   {"nonsense", {1, 2}},
                                                   {"user", "me"},
                                                   {"tools", Json::array({{{"type", "function"}}})},
                                                   {"tool_choice", "none"},
                                                   {"response_format", {{"type", "text"}}},
                                                   {"stop", nullptr},
                                                   {"seed", nullptr},
                                                   {"n", nullptr},
                                                   {"logit_bias", nullptr},
                                                   {"max_tokens", 1.0},
                                                   {"top_k", -1},
                                                   {"stop", ""}}));

    EXPECT_EQ(answer->status(), 200u) << answer->response().body;
}

TEST_F(ApiTest, DamagedBodiesNeverCrash) {
    const std::string good = chat("Tell me a story", {{"max_tokens", 1},
                                                      {"stop", {"a", "b"}},
                                                      {"logprobs", true},
                                                      {"top_logprobs", 2},
                                                      {"logit_bias", {{"5", 1}}}})
                                 .dump();
    constexpr unsigned seed = 20;
    std::mt19937 random(seed);
    RecordProperty("seed", static_cast<int>(seed));
    for (int i = 0; i < 300; ++i) {
        std::string body = good;
        for (int edit = 0; edit < 3; ++edit) {
            const std::size_t at = random() % body.size();
            switch (random() % 3) {
                case 0: body[at] = static_cast<char>(random()); break;
                case 1: body.erase(at, random() % 8); break;
                default: body.insert(at, body.substr(random() % body.size(), random() % 8)); break;
            }
            if (body.empty()) body = "x";
        }
        const auto answer = start(chat_path, body);
        answer->wait();
        if (answer->streamed()) continue;
        EXPECT_TRUE(answer->status() == 200 || (answer->status() >= 400 && answer->status() < 500))
            << body << answer->response().body;
    }
}

}  // namespace
}  // namespace moex::test
