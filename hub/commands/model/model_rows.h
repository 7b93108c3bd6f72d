// The rows of `moex-hub model`. Each has one calculated figure, beside the paper's or the measured
// figure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/foresight/cost/token_time.h"

namespace moex {

struct ModelRow {
    std::string table, row, quantity;  // "Table 1", "h=2", "ms"
    std::optional<double> beside;      // the figure of the paper or of a measurement
    double value = 0;
    std::string how;
};
struct RowColumns {
    std::string_view beside, value;
};
inline constexpr RowColumns paper_columns{"paper", "computed"};
inline constexpr RowColumns measured_columns{"measured", "predicted"};

// The swarm for which a person wants the figures.
struct ModelQuestion {
    std::string name;
    RoundShape shape;
    LayerTimes times;
    double bits = 4.25;                 // bits of an expert's weight
    double workers = 16, replicas = 2;  // replicas of each expert
    double copies = 3;                  // rows for h = 1 to this number
    double rows = 256;                  // rows of a prompt's chunk
};
std::vector<ModelRow> model_rows(const ModelQuestion& question);
// Returns rows for Tables 1 and 3, eq. 3 and eq. 13, with the values of the paper.
std::vector<ModelRow> paper_rows();
std::vector<ModelRow> forecast_rows(const std::string& model, const HubFigures& figures);

std::string rows_as_table(const std::vector<ModelRow>& rows, const RowColumns& columns);
std::string rows_as_csv(const std::vector<ModelRow>& rows, const RowColumns& columns);
std::string rows_as_json(const std::vector<ModelRow>& rows, const RowColumns& columns);

}  // namespace moex
