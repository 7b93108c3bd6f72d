// The rows of the tables that `moex-hub model` prints. Each row has one calculated figure beside
// the figure of the paper or of a measurement.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/foresight/cost/token_time.h"

namespace moex {

struct ModelRow {
    std::string table, row, quantity;  // labels of the row, such as "Table 1", "h=2", "ms"
    std::optional<double> beside;      // figure of the paper or of a measurement, for comparison
    double value = 0;
    std::string how;
};
struct RowColumns {
    std::string_view beside, value;
};
inline constexpr RowColumns paper_columns{"paper", "computed"};
inline constexpr RowColumns measured_columns{"measured", "predicted"};

// The model and the swarm for which a person wants the calculated figures.
struct ModelQuestion {
    std::string name;
    RoundShape shape;
    LayerTimes times;
    double bits = 4.25;                 // bits that one weight of an expert takes
    double workers = 16, replicas = 2;  // workers of the swarm, and replicas of each expert
    double copies = 3;                  // largest h of the table, which has rows for h = 1, 2, ...
    double rows = 256;                  // rows of a chunk of a prompt
    double acceptance = 0;              // share of drafted tokens that are accepted; 0: no drafts
    double draft_ms = 0;                // time that drafting one token takes
};
std::vector<ModelRow> model_rows(const ModelQuestion& question);
// Returns the rows for Tables 1 and 3, eq. 3 and eq. 13 of the paper, with the paper's values.
std::vector<ModelRow> paper_rows();
std::vector<ModelRow> forecast_rows(const std::string& model, const HubFigures& figures);

std::string rows_as_table(const std::vector<ModelRow>& rows, const RowColumns& columns);
std::string rows_as_csv(const std::vector<ModelRow>& rows, const RowColumns& columns);
std::string rows_as_json(const std::vector<ModelRow>& rows, const RowColumns& columns);

}  // namespace moex
