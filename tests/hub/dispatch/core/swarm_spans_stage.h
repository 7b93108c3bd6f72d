// A SwarmCore with workers that compute whole layers. They load at once, and answer no step.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hub/dispatch/core/swarm_core.h"
#include "hub/dispatch/span/span_board.h"
#include "protocol/text.h"

namespace moex {

class SwarmSpansTest : public testing::Test {
  protected:
    using Range = std::pair<std::uint32_t, std::uint32_t>;
    SwarmSpansTest() { set_sizes(); }
    // Sets the options that follow from the sizes of the model.
    void set_sizes() {
        layer_bytes_ = num_experts_ * blob_bytes_ + layer_blob_bytes_;
        layers_max_ = num_layers_;
        options_.limits = {
            .hidden_size = 32, .num_layers = num_layers_, .num_experts = num_experts_};
        options_.expert_shape = {.hidden_size = 32, .moe_intermediate_size = 32, .group_size = 32};
        options_.top_k = 2;
        options_.expert_blob_bytes = blob_bytes_;
        options_.layer_is_moe.assign(num_layers_, 1);
        options_.blob_hash = [](std::uint32_t layer, std::uint32_t expert) {
            Sha256 hash{};
            hash[0] = static_cast<std::byte>(layer);
            hash[1] = static_cast<std::byte>(expert);
            return hash;
        };
        options_.token_ok = [](std::string_view) { return true; };
        options_.checks.on = true;
        options_.spans.on = true;
        options_.spans.kv_size = kv_size_;
        options_.spans.context_tokens = 1024;
        options_.spans.layer_of = [this](std::uint32_t layer) -> std::optional<SpanAssign::Layer> {
            SpanAssign::Layer blob{.size_bytes = layer_blob_bytes_};
            blob.blob[0] = static_cast<std::byte>(layer);
            return blob;
        };
    }

    // Connects a worker with room for `layers` layers.
    WorkerId join(std::uint32_t layers, const std::string& key,
                  const std::vector<std::string>& caps = {span_cap}) {
        if (!core_) core_.emplace(options_);
        const WorkerId id = core_->on_connect(now_, "10.0.0.1", true, actions_);
        Hello hello;
        hello.caps.insert(hello.caps.end(), caps.begin(), caps.end());
        hello.worker_key = key;
        // The hub plans with four fifths of it. The rest is for the buffers of a step, which a hub
        // without experts counts.
        hello.span_bytes = (layers * layer_bytes_ * 5 + 3) / 4;
        const std::uint64_t rest = hello.span_bytes - layers * layer_bytes_;
        step_bytes_[id] = options_.local_fallback ? 0 : std::min<std::uint64_t>(rest, 128 << 20);
        hello.device = {.backend = "test", .budget_bytes = budget_bytes_ + step_bytes_[id]};
        hello.span_kv_bytes = kv_bytes_;
        if (std::count(caps.begin(), caps.end(), span_once_cap) > 0) can_take_once_.insert(id);
        core_->on_frame(now_, id, encode_hello(hello), actions_);
        perform();
        return id;
    }
    // The next worker is the first one of another hub.
    void start_anew() {
        core_.emplace(options_);
        held_.clear();
        units_.clear();
        can_take_once_.clear();
        take_once_.clear();
    }
    void leave(WorkerId id) {
        core_->on_disconnect(now_, id, actions_);
        held_.erase(id);
        perform();
    }
    // Lets heartbeats pass.
    void wait() {
        for (int i = 0; i < 100; ++i) {
            now_ += 100ms;
            core_->on_tick(now_, actions_);
            perform();
        }
    }
    std::optional<Range> layers_of(WorkerId id) const {
        const auto found = held_.find(id);
        if (found == held_.end()) return std::nullopt;
        return Range(found->second.first_layer,
                     found->second.first_layer + found->second.layers.size());
    }
    std::uint32_t span_of(WorkerId id) const { return held_.at(id).span; }

    // Answers as workers that load at once.
    void perform() {
        while (!actions_.empty()) {
            const std::vector<SwarmAction> actions = std::exchange(actions_, {});
            for (const SwarmAction& action : actions) {
                if (const auto* event = std::get_if<WorkerEvent>(&action))
                    events_[event->worker].push_back(event->kind);
                if (const auto* limit = std::get_if<SetFrameLimit>(&action))
                    frame_limits_[limit->worker] = limit->bytes;
                if (const auto* close = std::get_if<CloseWorker>(&action))
                    closed_.insert(close->worker);
                if (const auto* send = std::get_if<SendFrame>(&action))
                    receive(send->worker, WireFrame(send->frame).whole());
            }
        }
    }
    void receive(WorkerId id, const Bytes& frame) {
        const FrameHeader header = *decode_frame_header(frame);
        const auto reply = [&](const Bytes& bytes) { core_->on_frame(now_, id, bytes, actions_); };
        if (header.type == FrameType::assign) {
            std::vector<Unit> units;
            const Assign assigned = *decode_assign(frame, options_.limits);
            for (const AssignedUnit& unit : assigned.units)
                units.push_back({unit.layer, unit.expert});
            units_[id].insert(units_[id].end(), units.begin(), units.end());
            reply(encode_ready(units));
        }
        if (header.type == FrameType::welcome) {
            // This model's sizes are not those of real experts, which decode_welcome() requires.
            const std::string text(reinterpret_cast<const char*>(frame.data()), frame.size());
            if (can_take_once_.contains(id) && text.find(span_once_cap) != std::string::npos)
                take_once_.insert(id);
        }
        if (header.type == FrameType::release) {
            const std::vector<Unit> units = *decode_units(frame, options_.limits);
            for (const Unit& unit : units) num_released_[id] += std::erase(units_[id], unit);
        }
        if (header.type == FrameType::group_dispatch || header.type == FrameType::dispatch)
            calls_.insert(id);
        if (header.type == FrameType::heartbeat) heartbeats_[id] = header.sequence_id;
        if (header.type == FrameType::heartbeat && id != mute_)
            reply(encode_heartbeat(header.sequence_id));
        if (header.type == FrameType::span_release) {
            held_.erase(id);  // the holder's memory is free
            reply(encode_budget({.budget_bytes = budget_bytes_ + step_bytes_[id]}));
        }
        if (header.type != FrameType::span_assign || !loads_) return;
        const SpanAssign assign = *decode_span_assign(frame, options_.limits);
        if (assign.layers.size() > layers_max_)
            return reply(encode_span_ready({.span = assign.span}));
        held_[id] = assign;
        std::uint64_t bytes = assign.layers.size() * layer_bytes_ + assign.kv_bytes_max;
        if (take_once_.contains(id))
            bytes -= blob_bytes_ *
                     std::count_if(units_[id].begin(), units_[id].end(), [&](const Unit& unit) {
                         const Range range = *layers_of(id);
                         return unit.layer >= range.first && unit.layer < range.second;
                     });
        Budget budget{.budget_bytes = budget_bytes_ - std::min(budget_bytes_, bytes)};
        for (std::vector<Unit>& units = units_[id];
             units.size() * blob_bytes_ > budget.budget_bytes; units.pop_back())
            budget.dropped.push_back(units.back());
        reply(encode_budget(budget));
        reply(encode_span_ready(
            {.span = assign.span, .num_pages = 8, .page_tokens = 128, .rows_max = 64}));
    }

    std::uint32_t num_layers_ = 10, num_experts_ = 4, kv_size_ = 8;
    std::uint64_t blob_bytes_ = 1000, layer_blob_bytes_ = 500, layer_bytes_ = 0;
    // Workers that join have these sizes. A worker with spans has the memory of their steps, too.
    std::uint64_t budget_bytes_ = 1u << 30, kv_bytes_ = 1u << 30;
    std::map<WorkerId, std::uint64_t> step_bytes_;
    SwarmOptions options_;
    std::optional<SwarmCore> core_;
    TimePoint now_ = TimePoint{} + 1h;
    std::vector<SwarmAction> actions_;
    std::map<WorkerId, SpanAssign> held_;
    std::map<WorkerId, std::vector<WorkerEvent::Kind>> events_;
    std::set<WorkerId> closed_;
    std::map<WorkerId, std::uint64_t> frame_limits_;
    std::map<WorkerId, std::vector<Unit>> units_;  // experts that the worker holds
    std::map<WorkerId, std::size_t> num_released_;
    std::size_t layers_max_ = 0;
    bool loads_ = true;         // whether workers load spans
    std::set<WorkerId> calls_;  // workers that were sent calls of experts
    // Workers with span_once, and among these the ones that found it in WELCOME.
    std::set<WorkerId> can_take_once_, take_once_;
    WorkerId mute_ = 0;                             // answers no heartbeat
    std::map<WorkerId, std::uint32_t> heartbeats_;  // the newest one of each worker
};

}  // namespace moex
