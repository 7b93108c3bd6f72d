// TerminalText removes control characters from a model's text before a terminal shows it. A model
// may write escape sequences, and the terminal would obey them: it could change its
// title, hide lines or send input. Line breaks and tabs stay; every other control character (C0,
// DEL, and C1 in UTF-8) is left out.
#pragma once

#include <string>
#include <string_view>

namespace moex {

class TerminalText {
  public:
    // Returns the part of `piece` that may be printed. The first byte of a C1 character is held
    // back until the second one is known.
    std::string push(std::string_view piece) {
        std::string out;
        for (const char c : piece) {
            const auto byte = static_cast<unsigned char>(c);
            if (has_lead_) {
                has_lead_ = false;
                if (byte >= 0x80 && byte < 0xa0) continue;  // U+0080 to U+009F
                out += '\xc2';
            }
            if (byte == 0xc2)
                has_lead_ = true;
            else if (byte == '\n' || byte == '\t' || (byte >= 0x20 && byte != 0x7f))
                out += c;
        }
        return out;
    }

  private:
    bool has_lead_ = false;  // 0xc2 was the last byte
};

}  // namespace moex
