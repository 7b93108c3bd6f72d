// The folder of this repository, for tests that read its files.
#pragma once

#include <filesystem>

namespace moex {

std::filesystem::path repository();

}  // namespace moex
