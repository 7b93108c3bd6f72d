// StopFilter ends a streamed text at the first stop string that occurs in it. A stop string may
// span several pieces of the stream.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moex {

class StopFilter {
  public:
    explicit StopFilter(std::vector<std::string> stops);
    // Adds a piece of the text. Returns the text that can be shown now, or an empty text once
    // stopped().
    std::string push(std::string_view piece);
    std::string finish();  // at the end: returns the text that was held back
    bool stopped() const { return stopped_; }
    const std::string& stop() const { return stop_; }  // the string that was found, or empty

  private:
    std::vector<std::string> stops_;
    std::string held_, stop_;
    bool stopped_ = false;
};

}  // namespace moex
