// Draws a QR code as text: two modules per character cell, dark on light with any terminal colours.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moex {
// empty if the content does not fit into a QR code
std::string qr_half_blocks(std::string_view content);
// Returns the QR code as rows of '1' (dark) and '0' (light), without the border.
std::vector<std::string> qr_rows(const std::string& content);
}  // namespace moex
