#include "tests/support/repository.h"

namespace moex {

std::filesystem::path repository() { return MOEX_SOURCE_DIR; }

}  // namespace moex
