// moex-hub model: calculates, without a hub, the times of a round, a token and a prompt, and the
// number of experts that a worker holds. The command also prints the paper's tables beside the
// correct values, and the calculated and the measured times of a running hub.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <thread>

#include "hub/commands/command.h"
#include "hub/commands/model/fetch_status.h"
#include "hub/commands/model/hub_figures.h"
#include "hub/commands/model/model_rows.h"
#include "hub/commands/output.h"
#include "hub/model/pack/synth.h"
#include "hub/model/package/package.h"

namespace moex {
namespace {

// Reads the options whose values are numbers, and keeps the first error.
class Numbers {
  public:
    explicit Numbers(const Invocation& invocation) : invocation_(invocation) {}
    double read(std::string_view name, double otherwise, double min, double max) {
        const std::string* const given = invocation_.argument(name);
        if (!given) return otherwise;
        double value = 0;
        const char* const last = given->data() + given->size();
        const auto [end, failure] = std::from_chars(given->data(), last, value);
        if (failure == std::errc() && end == last && value >= min && value <= max) return value;
        if (wrong_.empty())
            wrong_ = text(name, ": wanted a number from ", min, " to ", max, ", found \"", *given,
                          "\"");
        return otherwise;
    }
    const std::string& wrong() const { return wrong_; }

  private:
    const Invocation& invocation_;
    std::string wrong_;
};

struct NamedModel {
    RoundShape shape;
    // bits per weight of INT4 packages: 128 weights share a scale and a zero of 16 bits each
    double bits = 4.25;
};

// Returns the shape of a model, either one that `moex-hub synth` knows by name, or that of the
// package in a folder.
Result<NamedModel> model_of(const std::string& name) {
    NamedModel model;
    auto shape = synth_shape(name);
    if (!shape.ok()) {
        const auto package = ModelPackage::open(name);
        if (!package.ok())
            return Error{ErrorCode::invalid_argument,
                         text("--shape: no shape and no package: ", package.error().message)};
        shape = (*package)->config();
        const double weights = 3.0 * shape->hidden_size * shape->moe_intermediate_size;
        if (weights > 0)
            model.bits = 8.0 * static_cast<double>((*package)->expert_blob_bytes()) / weights;
    }

    std::uint32_t num_moe_layers = 0;
    for (std::uint32_t layer = 0; layer < shape->num_layers; ++layer)
        num_moe_layers += shape->is_moe(layer);
    if (num_moe_layers == 0)
        return Error{ErrorCode::invalid_argument,
                     text("--shape: ", name, " has no experts: nothing of it leaves the hub")};
    model.shape = {.num_moe_layers = num_moe_layers,
                   .num_experts = shape->num_experts,
                   .top_k = shape->top_k,
                   .hidden_size = shape->hidden_size,
                   .moe_intermediate_size = shape->moe_intermediate_size};
    return model;
}

Result<ModelQuestion> question_of(const Invocation& invocation) {
    const std::string* const name = invocation.argument("--shape");
    ModelQuestion question;
    question.name = name ? *name : "qwen3-30b-a3b";
    MOEX_ASSIGN(model, model_of(question.name));
    question.shape = model.shape;

    Numbers numbers(invocation);
    question.bits = numbers.read("--bits", model.bits, 0.1, 64);
    question.workers = numbers.read("--workers", 16, 1, 1e6);
    question.replicas = numbers.read("--replicas", 2, 1, 1e6);
    question.copies = numbers.read("--copies", 3, 1, 64);
    question.rows = numbers.read("--rows", 256, 1, 1e6);
    question.acceptance = numbers.read("--acceptance", 0, 0, 1);
    question.draft_ms = numbers.read("--draft-ms", 0, 0, 1e6);
    question.times = {.hub_ms = numbers.read("--hub-ms", 1.5, 0, 1e6),
                      .readback_ms = numbers.read("--readback-ms", 0.2, 0, 1e6),
                      .rtt_ms = numbers.read("--rtt-ms", 2, 0, 1e6),
                      .expert_ms = numbers.read("--expert-ms", 0.7, 0, 1e6),
                      .sigma = numbers.read("--sigma", 0.5, 0, 3),
                      .hub_row_ms = numbers.read("--hub-row-ms", 0, 0, 1e6),
                      .expert_row_ms = numbers.read("--expert-row-ms", 0, 0, 1e6),
                      .mbit_s = numbers.read("--mbit-s", 0, 0, 1e9)};
    if (!numbers.wrong().empty()) return Error{ErrorCode::invalid_argument, numbers.wrong()};
    return question;
}

Result<std::string> key_of(const Invocation& invocation) {
    const std::string* const path = invocation.argument("--key-file");
    if (!path) return std::string();
    std::ifstream file(*path);
    std::string key;
    if (!(file >> key)) return Error{ErrorCode::io_error, text(*path, ": no key can be read")};
    return key;
}

// Calculates the expected times from the status of a running hub. `url` may be "-" for an
// /api/status body on stdin. With --over the hub's status is sampled once and then twenty times.
// Without --over one sample has all figures since the hub's start.
Result<std::vector<ModelRow>> look_at_hub(const Invocation& invocation, const std::string& url) {
    Numbers numbers(invocation);
    const double over_s = numbers.read("--over", 0, 0, 86'400);
    if (!numbers.wrong().empty()) return Error{ErrorCode::invalid_argument, numbers.wrong()};
    MOEX_ASSIGN(key, key_of(invocation));
    const auto look = [&]() -> Result<HubLook> {
        if (url == "-") return read_status(std::string{std::istreambuf_iterator(std::cin), {}});
        MOEX_ASSIGN(told, fetch_status(url, key));
        return read_status(told);
    };

    std::vector<HubLook> looks(1);  // without --over: a first sample whose counts are all zero
    if (over_s > 0 && url != "-") {
        MOEX_ASSIGN(first, look());
        looks[0] = std::move(first);
    }
    const int num_looks = over_s > 0 && url != "-" ? 20 : 1;
    for (int i = 0; i < num_looks; ++i) {
        if (num_looks > 1)
            std::this_thread::sleep_for(std::chrono::duration<double>(over_s / num_looks));
        MOEX_ASSIGN(one, look());
        looks.push_back(std::move(one));
    }
    MOEX_ASSIGN(figures, figures_over(looks));
    return forecast_rows(looks.back().model, figures);
}

}  // namespace

int run_model(const Invocation& invocation) {
    const std::string* const url = invocation.argument("--from-metrics");
    const bool csv = invocation.argument("--csv"), json = invocation.argument("--json");
    const RowColumns columns = url ? measured_columns : paper_columns;

    Result<std::vector<ModelRow>> rows = std::vector<ModelRow>();
    if (url) {
        rows = look_at_hub(invocation, *url);
    } else if (invocation.argument("--paper")) {
        rows = paper_rows();
    } else {
        const auto question = question_of(invocation);
        rows = question.ok() ? Result(model_rows(*question)) : question.error();
    }
    if (!rows.ok()) {
        fail(rows.error().message);
        return rows.error().code == ErrorCode::invalid_argument ? exit_wrong_arguments
                                                                : exit_failed;
    }
    (void)print_now(json  ? rows_as_json(*rows, columns)
                    : csv ? rows_as_csv(*rows, columns)
                          : rows_as_table(*rows, columns));
    return exit_stopped;
}

}  // namespace moex
