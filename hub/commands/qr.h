// A QR code as text: two modules per character cell, dark on light whatever the terminal's colours.
#pragma once

#include <string>
#include <string_view>

namespace moex {
std::string qr_half_blocks(std::string_view content);  // empty when the content does not fit
}  // namespace moex
