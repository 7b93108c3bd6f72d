#include "hub/commands/serve/qr.h"

#include <exception>

#include <qrcodegen/qrcodegen.hpp>

namespace moex {

std::string qr_half_blocks(std::string_view content) {
    try {
        const auto code = qrcodegen::QrCode::encodeText(std::string(content).c_str(),
                                                        qrcodegen::QrCode::Ecc::LOW);
        // Width of the light border in modules. Phones read a code with a border of two modules as
        // well as with the four modules of the standard.
        constexpr int quiet = 2;
        std::string out;
        const auto dark = [&](int x, int y) {
            return code.getModule(x, y);
        };  // modules outside the code are light
        for (int y = -quiet; y < code.getSize() + quiet; y += 2) {
            out += "  \x1b[30;107m";
            for (int x = -quiet; x < code.getSize() + quiet; ++x) {
                const bool upper = dark(x, y), lower = dark(x, y + 1);
                out += upper && lower ? "█" : upper ? "▀" : lower ? "▄" : " ";
            }
            out += "\x1b[0m\n";
        }
        return out;
    } catch (const std::exception&) {  // the content does not fit into the largest QR code
        return {};
    }
}

std::vector<std::string> qr_rows(const std::string& content) {
    try {
        const auto code = qrcodegen::QrCode::encodeText(content.c_str(),
                                                        qrcodegen::QrCode::Ecc::LOW);
        std::vector<std::string> rows;
        for (int y = 0; y < code.getSize(); ++y) {
            std::string& row = rows.emplace_back();
            for (int x = 0; x < code.getSize(); ++x) row += code.getModule(x, y) ? '1' : '0';
        }
        return rows;
    } catch (const std::exception&) {
        return {};
    }
}

}  // namespace moex
