// The parts of a hub that it has only by a setting: drafts, hints, a shadow, lossy modes, and
// layers that workers compute whole.
#include <algorithm>

#include "hub/base/log.h"
#include "hub/commands/serve/hub_program.h"
#include "hub/commands/serve/serve_options.h"
#include "hub/commands/serve/shadow_report.h"
#include "hub/commands/version.h"
#include "hub/foresight/predict/replayed_routes.h"
#include "hub/foresight/predictor_choice.h"
#include "hub/options/options_shadow.h"
#include "hub/registry/hub_id.h"

namespace moex {

Status HubProgram::open_drafts() {
    const ModelSettings& model = settings_.model;
    const auto on_changed = [this](const Error& error) { on_changed_bytes(error); };
    if (model.drafts) MOEX_TRY(drafts_.open_head(model_, on_changed));
    if (model.draft_folder.empty()) return {};
    if (!model.drafts)
        return Error{ErrorCode::invalid_argument,
                     "--draft DIR drafts tokens, and --speculative off uses none: leave one of "
                     "them out"};
    const Status opened = drafts_.open(model.draft_folder, model_, on_changed);
    if (opened.ok()) return {};
    return Error{opened.error().code, text("--draft: ", opened.error().message)};
}

// Opens the model that browsers load to answer on their own device. This machine computes nothing
// with it.
Status HubProgram::open_device_model() {
    const std::string& folder = settings_.model.device_model_folder;
    if (folder.empty()) return {};
    if (!settings_.model.gives_model)
        return Error{ErrorCode::invalid_argument,
                     "--device-model DIR gives browsers a model, and --give-model off gives none: "
                     "leave one of them out"};
    auto package = ModelPackage::open(folder);
    const Status whole = package.ok() ? (*package)->require_all_blobs() : package.error();
    if (!whole.ok())
        return Error{whole.error().code, text("--device-model: ", whole.error().message)};
    (*package)->on_changed_bytes([this](const Error& error) { on_changed_bytes(error); });
    log_info("hub: browsers load another model", kv("model", (*package)->name()),
             kv("served", model_.package->name()));
    device_package_ = *std::move(package);
    return {};
}

// Opens the predictor that sends prefetch hints. A model with one MoE layer gets no predictor,
// because there is no later layer to predict.
Status HubProgram::open_hints() {
    const PrefetchSettings& prefetch = settings_.contributors.prefetch;
    const bool has_shadow = !prefetch.shadow_folder.empty();
    if (has_shadow) MOEX_TRY(open_served_shadow(prefetch.shadow_folder));
    const std::uint32_t per_row = prefetch_per_row(prefetch, model_.package->config());
    if (per_row == 0 || !swarm_computes()) return {};
    MOEX_ASSIGN(sources, load_speculation_sources(model_.package, *model_.threads));
    if (sources.gates->moe_layers().size() < 2) return {};

    const std::string& recall = prefetch.replayed_recall;
    auto predictor = recall.empty()
                         ? make_predictor(prefetch.predictor, sources, !gpu_)
                         : make_replay_predictor(std::stod(recall), 1, recall.ends_with("+1"));
    if (!predictor.ok())
        return Error{ErrorCode::invalid_argument,
                     text("--prefetch-by ", prefetch.predictor, ": ", predictor.error().message)};
    hints_by_ = std::string((*predictor)->name());
    if (has_shadow) hints_by_ = text("shadow:", prefetch.shadow_folder, ", ", hints_by_);
    hints_ = std::make_unique<Hints>(sources.gates, *std::move(predictor), per_row,
                                     settings_.contributors.placement.num_groups);
    if (gpu_) gpu_->foresee_with(hints_.get());
    if (model_.decoder) model_.decoder->foresee_with(hints_.get());
    log_info("hub: predicts experts for workers that load them on demand", kv("by", hints_by_),
             kv("per_token", per_row));
    return {};
}

// Returns true if this machine can read the experts' weights, and uses them for checks only.
bool HubProgram::has_weights_for_checks() const {
    return span_layers_ && model_.local && !settings_.contributors.has_local_fallback &&
           settings_.contributors.checks_answers;
}

void HubProgram::open_own_layers() {
    const std::uint32_t count = settings_.contributors.own_layers;
    if (count == 0 && !has_weights_for_checks()) return;
    // Reads the package's files at each check and keeps no other copy of them.
    checking_experts_ = std::make_unique<LocalExperts>(model_.package, *model_.threads,
                                                       ExpertRounding{}, Arithmetic::exact);
    own_layers_ = std::make_unique<OwnLayers>(
        *model_.local, *checking_experts_, experts(),
        own_layers(model_.package->config().num_layers, count));
    if (count > 0)
        log_info("hub: experts of own layers are computed by this machine alone",
                 kv("layers", count));
}

// Packs the experts in the background that only this machine computes. Where it is only the
// fallback of its workers, it packs an expert when it is first requested, since few experts may be.
void HubProgram::pack_experts() {
    const bool computes_all = !swarm_computes() && !(gpu_ && gpu_computes_experts());
    const std::uint32_t num_own = settings_.contributors.own_layers;
    if (!computes_all && num_own == 0) return;
    std::vector<std::uint8_t> layers;
    if (!computes_all) layers = own_layers(model_.package->config().num_layers, num_own);
    model_.local->pack_in_background(
        [this] {
            log_info("hub: experts packed",
                     kv("since_start_ms", to_ms(now_steady() - started_at_)));
        },
        std::move(layers));
}

// Returns what forbids that workers compute layers whole, or an empty text.
std::string HubProgram::why_no_spans() const {
    if (!settings_.contributors.uses_spans || !swarm_computes()) return "no worker is asked to";
    if (settings_.model.is_deterministic)
        return "--deterministic: a worker's layers are another arithmetic";
    if (!settings_.model.gives_model)
        return "--give-model off: a worker would load attention weights";
    return {};
}

// Prepares the layers for workers that compute them whole, unless something forbids it.
void HubProgram::open_spans() {
    if (!settings_.contributors.uses_spans || !swarm_computes()) return;
    const auto refuse = [](std::string_view why) {
        log_info("hub: workers compute experts, and no layers whole", kv("because", why));
    };
    if (const std::string why = why_no_spans(); !why.empty()) return refuse(why);
    SpanLayers::Sign sign;
    if (signing_key_)
        sign = [key = signing_key_](std::string_view text) { return key->sign(text); };
    auto layers = SpanLayers::open(model_.package, std::move(sign));
    if (!layers.ok()) return refuse(layers.error().message);
    span_layers_ = *std::move(layers);
}

nlohmann::json HubProgram::spans_json() const {
    const SpanClient& spans = *swarm_->spans();
    const SpanCounters counts = spans.counters();
    nlohmann::json out = {{"trips", counts.trips},
                          {"checks", counts.checks},
                          {"wrong", counts.wrong},
                          {"states", counts.states},
                          {"late", counts.late},
                          {"failed", counts.failed},
                          {"lies", counts.lies},
                          {"set_aside", counts.set_aside},
                          {"disputes", counts.disputes},
                          {"kv_rows", counts.kv_rows},
                          {"kv_bytes", counts.kv_bytes},
                          {"step_rows", counts.step_rows},
                          {"step_bytes", counts.step_bytes},
                          {"answer_rows", counts.answer_rows},
                          {"answer_bytes", counts.answer_bytes},
                          {"difference_max", counts.difference_max},
                          {"held", nlohmann::json::array()}};
    for (const SpanView& view : spans.views())
        out["held"].push_back({{"worker", view.worker},
                               {"first_layer", view.first_layer},
                               {"end_layer", view.end_layer},
                               {"proven", view.proven},
                               {"used", view.used},
                               {"standby", view.standby},
                               {"here_ms", view.here_ms},
                               {"away_ms", view.away_ms}});
    return out;
}

Status HubProgram::open_served_shadow(const std::string& folder) {
    const auto refuse = [](const auto&... why) {
        return Error{ErrorCode::invalid_argument, text("--prefetch shadow:DIR: ", why...)};
    };
    if (gpu_)
        return refuse(
            "the shadow runs on this machine's cores beside the model's steps, which run on a GPU "
            "(--gpu off)");
    if (!swarm_computes()) return refuse("workers compute no experts of this model");
    auto opened = open_shadow(folder, model_);
    if (!opened.ok()) return refuse(opened.error().message);
    shadow_parts_ = *std::move(opened);
    log_info("hub: a shadow runs ahead of the model", kv("shadow", folder),
             kv("threads", shadow_parts_->threads->num_threads()));
    return {};
}

// Starts the shadow. The swarm must exist before, because the shadow sends hints to it. The engine
// must be made later, because it calls the shadow.
void HubProgram::start_shadow() {
    if (!shadow_parts_ || !hints_) return;
    // The shadow predicts the experts of a layer at least two layers before the model reaches it.
    // Then they are loaded while the answers of the layer between are pending.
    constexpr std::uint32_t lead_min = 2;
    const ContributorSettings& contributors = settings_.contributors;
    KvCacheOptions kv{.page_tokens = engine_options_.page_tokens,
                      .dtype = engine_options_.kv_dtype};
    const KvCache probe(model_.package->config(), kv);
    kv.num_pages = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(engine_options_.kv_bytes_max / probe.page_bytes(), 1u << 20));
    shadow_ = std::make_unique<ServedShadow>(
        std::move(shadow_parts_->decoder), *shadow_parts_->experts, hints_.get(),
        ServedShadowOptions{
            .per_row = prefetch_per_row(contributors.prefetch, model_.package->config()),
            .lead = std::max(lead_min, contributors.placement.num_groups),
            .draws_ahead = shadow_draws_ahead,
            .token_period = shadow_token_period,
            .kv_period = shadow_kv_period,
            .kv = kv},
        [this](std::span<const ExpertHint> hints) {
            if (swarm_->wants_hints()) swarm_->hint(hints);
        });
    model_.decoder->foresee_with(shadow_.get());
}

nlohmann::json HubProgram::shadow_json() const {
    if (!shadow_) return nullptr;
    const PrefetchSettings& prefetch = settings_.contributors.prefetch;
    return shadow_report(prefetch.shadow_folder,
                         prefetch_per_row(prefetch, model_.package->config()), shadow_->counters());
}

// Opens the lossy modes. If the hub cannot offer them, the operator sees the reason here, and a
// client gets it in the answer to its request.
Status HubProgram::open_lossy_modes() {
    if (settings_.model.is_deterministic)
        no_lossy_modes_ = "--deterministic promises the model's own answers.";
    else if (gpu_)
        no_lossy_modes_ = "the hub's steps run on a GPU (--gpu).";
    else if (!model_.package->config().has_experts())
        no_lossy_modes_ = "the model has no experts.";
    const bool is_exact = settings_.contributors.experts == AnswerMode::exact;
    const char* const wanted = answer_mode_name(settings_.contributors.experts);
    if (!no_lossy_modes_.empty()) {
        if (is_exact) return {};
        return Error{ErrorCode::invalid_argument,
                     text("--experts ", wanted, ": ", no_lossy_modes_)};
    }

    MOEX_ASSIGN(sources, load_speculation_sources(model_.package, *model_.threads));
    auto losses = load_measured_losses(*model_.package);
    if (!losses.ok() && losses.error().code != ErrorCode::not_found)
        log_warn("hub: the perplexity of the lossy modes is not known",
                 kv("because", losses.error().message));
    lossy_modes_ = std::make_unique<LossyModes>(
        std::move(sources), losses.ok() ? *std::move(losses) : MeasuredLosses());
    if (is_exact) return {};
    const auto mode = lossy_modes_->find(wanted);
    if (!mode.ok())
        return Error{ErrorCode::invalid_argument,
                     text("--experts ", wanted, ": ", mode.error().message)};
    return {};
}

Status HubProgram::open_fleet_key() {
    const std::filesystem::path& file = settings_.address.fleet_key_file;
    if (file.empty()) return {};
    if (settings_.address.store_url.empty())
        return Error{ErrorCode::invalid_argument,
                     "--fleet-key: a fleet has a store that its hubs share: --store "
                     "postgresql://HOST/DB"};
    const auto key = FleetKey::read(file);
    if (!key.ok()) return Error{key.error().code, text("--fleet-key: ", key.error().message)};
    fleet_key_ = *key;
    return {};
}

// Keeps journals of streams, so that another hub goes on with them. Names what determines the bits
// of a text besides the package.
void HubProgram::offer_streams(ApiOptions& options) {
    if (!fleet_key_) return;
    const auto hub_id = hub_id_of(state_directory_);
    if (!hub_id.ok()) throw std::runtime_error(hub_id.error().message);
    fleet_ = std::make_unique<net::FleetStreams>(
        *registry_, *fleet_key_,
        net::FleetStreamsOptions{
            .hub_id = *hub_id, .ca_file = {}, .on_lost = [this](const std::string& stream_id) {
                if (api_) api_->drop_stream(stream_id);
            }});
    const KvSource source = source_of_pages(settings_, kept_pages_parts());
    options.fleet = fleet_.get();
    options.arithmetic = text(
        static_cast<int>(source.arithmetic), ' ', static_cast<int>(source.weights), ' ',
        static_cast<int>(source.rounding), ' ', static_cast<int>(source.row_type));
}

Status HubProgram::join_fleet() {
    if (!registry_->is_shared()) return {};
    MOEX_ASSIGN(hub_id, hub_id_of(state_directory_));
    return registry_->join_fleet([this, hub_id = std::move(hub_id)] {
        const net::Server::Load load = server_->load();
        Member hub;
        hub.hub_id = hub_id;
        hub.address = server_->base_url();
        hub.model = model_.package->name();
        hub.package_sha256 = model_.package->manifest_sha256();
        hub.version = moex_version();
        hub.streams = load.requests;
        hub.workers = load.workers;
        hub.units = load.units;
        hub.missing = load.missing;
        hub.thin = load.thin;
        return hub;
    });
}

}  // namespace moex
