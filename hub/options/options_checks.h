// Checks of single values for the table of settings (options_table.cpp). An error says what was
// found and what is wanted; the caller adds the setting's name and its source.
//
// Some old values of --experts, --prefetch and --prefetch-by are refused here by name, with a
// sentence that says what to write instead. They were parameters of experiments:
//   --experts early:2               -> speculative or estimator
//   --prefetch shadow:DIR:3,kv=16   -> shadow:DIR (hub/options/options_shadow.h)
//   --prefetch-by lru               -> next-gate or estimator
#pragma once

#include <string_view>

#include "protocol/result.h"

namespace moex {

Status check_listen(std::string_view value);
Status check_origin(std::string_view value);
Status check_address(std::string_view value);
Status check_hedge(std::string_view value);
Status check_placement(std::string_view value);
// Accepts the values exact, speculative and estimator.
Status check_experts(std::string_view value);
// Accepts off, on, a number of experts from 1 to 1024, and shadow:DIR.
Status check_prefetch(std::string_view value);
// Accepts the values auto, next-gate and estimator.
Status check_prefetch_by(std::string_view value);
// Accepts a share from 0 to 1, also followed by "+1".
Status check_replay(std::string_view value);
// Accepts off, auto, and a number of drafted tokens from 1 to 16.
Status check_speculative(std::string_view value);
// Accepts auto, and a number of megabytes.
Status check_disk_mb(std::string_view value);
// Accepts the address of a PostgreSQL database (hub/registry/postgres_address.h).
Status check_store(std::string_view value);
Status check_number_text(std::string_view value);
Status check_seed(std::string_view value);
Status check_group(std::string_view value);

}  // namespace moex
