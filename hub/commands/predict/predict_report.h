// What `predict` measured, for people and as files.
#pragma once

#include <filesystem>
#include <string>

#include "hub/foresight/predict/contest.h"

namespace moex {

// Tables: every predictor, then by layer, then by place in the window.
std::string report_tables(const Contest& contest);
// Into `folder`, which is made: predictors.csv, layers.csv, tokens.csv, layers.svg, tokens.svg.
// `note` goes into the first line of each table as a comment and over the pictures.
Status write_reports(const Contest& contest, const std::filesystem::path& folder,
                     const std::string& note);

}  // namespace moex
