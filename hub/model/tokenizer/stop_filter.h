// Ends a text at the first of several strings, which may lie across pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moex {

class StopFilter {
  public:
    explicit StopFilter(std::vector<std::string> stops);
    // what can be shown now; nothing more once stopped()
    std::string push(std::string_view piece);
    std::string finish();  // what was held back
    bool stopped() const { return stopped_; }
    const std::string& stop() const { return stop_; }  // that it ended at; else empty

  private:
    std::vector<std::string> stops_;
    std::string held_, stop_;
    bool stopped_ = false;
};

}  // namespace moex
