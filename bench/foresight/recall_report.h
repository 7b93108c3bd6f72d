// The results of a contest of predictors, as tables for people and as files.
#pragma once

#include <filesystem>
#include <string>

#include "bench/foresight/contest.h"

namespace moex::bench {

// Returns three tables as text: all predictors, then recall by layer, then recall by token of the
// window.
std::string report_tables(const Contest& contest);
// Writes predictors.csv, layers.csv, tokens.csv, layers.svg and tokens.svg into `folder`, which is
// created. `note` is the first line of each table, as a comment, and the title of the pictures.
Status write_reports(const Contest& contest, const std::filesystem::path& folder,
                     const std::string& note);

}  // namespace moex::bench
