// Tests the shape of /api/status: it has every field that pages and scripts may read, and no other
// field.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "protocol/messages.h"
#include "tests/hub/net/hub_fixture.h"
#include "tests/hub/net/raw_client.h"

namespace moex::net {
namespace {

using nlohmann::json;

// Adds a line "a.b number" (path and type) for every leaf of the JSON; of an array only the first
// element is listed.
void add_shape(const json& value, const std::string& name, std::vector<std::string>& lines) {
    if (value.is_object()) {
        for (const auto& [key, member] : value.items())
            add_shape(member, name.empty() ? key : name + "." + key, lines);
    } else if (value.is_array()) {
        if (value.empty())
            lines.push_back(name + "[]");
        else
            add_shape(value[0], name + "[]", lines);
    } else {
        lines.push_back(name + " " + (value.is_number() ? "number" : value.type_name()));
    }
}

// The expected shape of /api/status, without the lines that are present only while a worker is
// connected.
const std::vector<std::string> golden{"calls.bad_answers number",
                                      "calls.bad_frames number",
                                      "calls.bans number",
                                      "calls.bytes_received number",
                                      "calls.bytes_sent number",
                                      "calls.calls number",
                                      "calls.frames_received number",
                                      "calls.frames_sent number",
                                      "calls.groups_answered number",
                                      "calls.groups_sent number",
                                      "calls.hedges_sent number",
                                      "calls.hedges_won number",
                                      "calls.probes_sent number",
                                      "calls.in_flight number",
                                      "calls.late number",
                                      "calls.lies number",
                                      "calls.load_window.groups number",
                                      "calls.load_window.hub_ms number",
                                      "calls.load_window.most_ms number",
                                      "calls.load_window.trip_ms number",
                                      "calls.load_window.worker_ms number",
                                      "calls.local number",
                                      "calls.on_demand.asked number",
                                      "calls.on_demand.brought_bytes number",
                                      "calls.on_demand.expired number",
                                      "calls.on_demand.foreseen number",
                                      "calls.on_demand.hits number",
                                      "calls.on_demand.late number",
                                      "calls.on_demand.lead_ms number",
                                      "calls.on_demand.load_ms number",
                                      "calls.on_demand.loads number",
                                      "calls.on_demand.misses number",
                                      "calls.on_demand.wasted_bytes number",
                                      "calls.p50_ms number",
                                      "calls.p99_ms number",
                                      "calls.pairs_proven number",
                                      "calls.pairs_unchecked number",
                                      "calls.pairs_verified number",
                                      "calls.redispatched number",
                                      "calls.replaced number",
                                      "calls.remote number",
                                      "calls.residual_max number",
                                      "calls.rounds number",
                                      "calls.rounds_failed number",
                                      "calls.rows_checked number",
                                      "calls.split.gpu_ms number",
                                      "calls.split.group_ms number",
                                      "calls.split.groups number",
                                      "calls.split.worker_ms number",
                                      "calls.timeouts number",
                                      "calls.hints_sent number",
                                      "calls.extras_given number",
                                      "calls.extras_taken number",
                                      "coverage.away number",
                                      "coverage.covered number",
                                      "coverage.extra number",
                                      "coverage.replicas_mean number",
                                      "coverage.replicas_min number",
                                      "coverage.units number",
                                      "engine.accepted_tokens number",
                                      "engine.cached_tokens number",
                                      "engine.cached_tokens_disk number",
                                      "engine.decode_tokens_per_s number",
                                      "engine.drafted_tokens number",
                                      "engine.drafts number",
                                      "engine.experts_waited_s number",
                                      "engine.generated_tokens number",
                                      "engine.kv_disk.bytes number",
                                      "engine.kv_disk.bytes_max number",
                                      "engine.kv_disk.keep_s number",
                                      "engine.kv_disk.listed boolean",
                                      "engine.kv_disk.on boolean",
                                      "engine.kv_disk.pages number",
                                      "engine.kv_disk.pages_evicted number",
                                      "engine.kv_disk.pages_read number",
                                      "engine.kv_disk.pages_refused number",
                                      "engine.kv_disk.pages_written number",
                                      "engine.kv_disk.writes_failed number",
                                      "engine.kv_pages number",
                                      "engine.kv_pages_cached number",
                                      "engine.kv_pages_used number",
                                      "engine.memory.drafts number",
                                      "engine.memory.pages number",
                                      "engine.memory.spare_states number",
                                      "engine.memory.state_copies number",
                                      "engine.memory.states number",
                                      "engine.memory_max.drafts number",
                                      "engine.memory_max.pages number",
                                      "engine.memory_max.spare_states number",
                                      "engine.memory_max.state_copies number",
                                      "engine.memory_max.states number",
                                      "engine.micro_batches number",
                                      "engine.prompt_tokens number",
                                      "engine.rows number",
                                      "engine.running number",
                                      "engine.running_max number",
                                      "engine.preempted number",
                                      "engine.split.drawing_s number",
                                      "engine.split.head_s number",
                                      "engine.split.layers_s number",
                                      "engine.split.steps number",
                                      "engine.split.waiting_s number",
                                      "engine.steps number",
                                      "engine.steps_micro_batched number",
                                      "engine.steps_multi_sequence number",
                                      "engine.steps_s number",
                                      "engine.steps_stopped number",
                                      "engine.waiting number",
                                      "health string",
                                      "host.certificate_left_s null",
                                      "host.state_free_bytes number",
                                      "host.state_is_full boolean",
                                      "join_url string",
                                      "model.context_tokens number",
                                      "model.expert_blob_bytes number",
                                      "model.expert_dtype string",
                                      "model.hidden_size number",
                                      "model.name string",
                                      "model.num_experts number",
                                      "model.num_layers number",
                                      "model.num_moe_layers number",
                                      "model.top_k number",
                                      "options.checks boolean",
                                      "options.deterministic boolean",
                                      "options.hedge string",
                                      "options.hot_copies number",
                                      "options.local_fallback boolean",
                                      "options.placement string",
                                      "options.replicas number",
                                      "options.use_workers string",
                                      "options.hints_by string",
                                      "replicas[][] number",
                                      "tiers[] string",
                                      "uptime_s number",
                                      "version string"};

const std::vector<std::string> golden_worker{"workers[].arithmetic string",
                                             "workers[].backend string",
                                             "workers[].bad_answers number",
                                             "workers[].bytes_received number",
                                             "workers[].bytes_sent number",
                                             "workers[].check_rate number",
                                             "workers[].client string",
                                             "workers[].connected_s number",
                                             "workers[].description string",
                                             "workers[].drained boolean",
                                             "workers[].errors number",
                                             "workers[].groups_answered number",
                                             "workers[].groups_sent number",
                                             "workers[].has_key boolean",
                                             "workers[].id number",
                                             "workers[].in_flight number",
                                             "workers[].nickname string",
                                             "workers[].on_demand.asked number",
                                             "workers[].on_demand.brought_bytes number",
                                             "workers[].on_demand.expired number",
                                             "workers[].on_demand.foreseen number",
                                             "workers[].on_demand.hits number",
                                             "workers[].on_demand.late number",
                                             "workers[].on_demand.lead_ms number",
                                             "workers[].on_demand.load_ms number",
                                             "workers[].on_demand.loads number",
                                             "workers[].on_demand.misses number",
                                             "workers[].on_demand.wasted_bytes number",
                                             "workers[].p50_ms number",
                                             "workers[].p99_ms number",
                                             "workers[].pairs_answered number",
                                             "workers[].pairs_credited number",
                                             "workers[].pinned boolean",
                                             "workers[].power number",
                                             "workers[].published_peer boolean",
                                             "workers[].ready_in.memory number",
                                             "workers[].ready_in.slot number",
                                             "workers[].ready_in.store number",
                                             "workers[].slot_bytes number",
                                             "workers[].slots number",
                                             "workers[].software boolean",
                                             "workers[].speed.expert_ns[] number",
                                             "workers[].speed.hidden_size number",
                                             "workers[].speed.moe_intermediate_size number",
                                             "workers[].speed.read_mb_s number",
                                             "workers[].split.gpu_ms number",
                                             "workers[].split.group_ms number",
                                             "workers[].split.groups number",
                                             "workers[].split.worker_ms number",
                                             "workers[].state string",
                                             "workers[].store_bytes number",
                                             "workers[].timeouts number",
                                             "workers[].trust string",
                                             "workers[].units_assigned number",
                                             "workers[].units_ready number",
                                             "workers[].vendor string"};

std::vector<std::string> shape_of(std::uint16_t port) {
    std::vector<std::string> lines;
    add_shape(json::parse(fetch(port, "GET", "/api/status").body), "", lines);
    std::sort(lines.begin(), lines.end());
    return lines;
}

Hello plain_hello(const std::string& token) {
    Hello hello;
    hello.token = token;
    hello.device.backend = "vulkan";
    hello.device.budget_bytes = 1 << 20;
    hello.kernel_version = "1";
    hello.client = "test 0.1.0";
    hello.worker_key = "status";
    return hello;
}

TEST(StatusTest, TheShapeIsTheOneThatPagesRead) {
    TestHub hub;
    std::vector<std::string> wanted = golden;
    wanted.push_back("workers[]");
    std::sort(wanted.begin(), wanted.end());
    EXPECT_EQ(shape_of(hub.port()), wanted);

    RawClient worker(hub.port());
    ASSERT_TRUE(worker.upgrade(hub.port(), hub.bearer()));
    constexpr int binary = 2;
    ASSERT_TRUE(worker.send_frame(binary, as_text_view(encode_hello(plain_hello(hub.token())))));
    ASSERT_EQ(worker.read_frame().opcode, binary) << "WELCOME";
    wanted = golden;
    wanted.insert(wanted.end(), golden_worker.begin(), golden_worker.end());
    std::sort(wanted.begin(), wanted.end());
    EXPECT_EQ(shape_of(hub.port()), wanted);
}

json status_of(std::uint16_t port) { return json::parse(fetch(port, "GET", "/api/status").body); }

TEST(StatusTest, AStepsTimeIsSharedOutAmongItsParts) {
    TestHub hub;
    const json before = status_of(hub.port())["engine"]["split"];
    EXPECT_EQ(before["steps"], 0);
    EXPECT_EQ(before["layers_s"], 0.0);

    const std::string body =
        R"({"model":"moex-demo","prompt":"One","max_tokens":4,"temperature":1,"seed":1})";
    ASSERT_EQ(fetch(hub.port(), "POST", "/v1/completions", json_type, body).status, 200);

    const json engine = status_of(hub.port())["engine"], split = engine["split"];
    EXPECT_EQ(split["steps"], engine["steps"]);
    for (const char* part : {"layers_s", "waiting_s", "head_s", "drawing_s"})
        EXPECT_GT(split[part], 0.0) << part;
    const double inside = split["layers_s"].get<double>() + split["waiting_s"].get<double>() +
                          split["head_s"].get<double>();
    EXPECT_NEAR(inside, engine["steps_s"].get<double>(), 1e-6);
}

// The demo model's layers have 16 experts each.
constexpr std::uint32_t layer_experts = 16;

TEST(StatusTest, EachExpertSaysWhereItsHolderHasIt) {
    TestHub hub;
    const std::string nobody(layer_experts, '-');
    EXPECT_EQ(status_of(hub.port())["tiers"][0], nobody);

    std::vector<Unit> units;
    for (std::uint16_t expert = 0; expert < layer_experts; ++expert) units.push_back({0, expert});
    std::vector<UnitTier> places(layer_experts, UnitTier::store);
    places[1] = UnitTier::memory;
    places[2] = UnitTier::slot;
    std::string wanted(layer_experts, 'd');
    wanted.replace(1, 2, "ms");

    constexpr int binary = 2;
    RawClient worker(hub.port());
    ASSERT_TRUE(worker.upgrade(hub.port(), hub.bearer()));
    Hello hello = plain_hello(hub.token());
    hello.device.budget_bytes = 1ull << 30;
    ASSERT_TRUE(worker.send_frame(binary, as_text_view(encode_hello(hello))));
    ASSERT_EQ(worker.read_frame().opcode, binary) << "WELCOME";
    ASSERT_TRUE(worker.send_frame(binary, as_text_view(encode_ready(units, places))));
    std::string told;
    EXPECT_TRUE(eventually([&] {
        told = status_of(hub.port())["tiers"][0];
        return told != nobody;
    }));
    EXPECT_EQ(told, wanted);
}

}  // namespace
}  // namespace moex::net
