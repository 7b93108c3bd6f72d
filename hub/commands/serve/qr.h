// A QR code as text: two modules per character cell, dark on light whatever the terminal's colours.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moex {
std::string qr_half_blocks(std::string_view content);  // empty when the content does not fit
// The same as rows of '1' (dark) and '0', without the light border.
std::vector<std::string> qr_rows(const std::string& content);
}  // namespace moex
