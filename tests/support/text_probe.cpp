// A program that answers the requests of text_answers.h: one request per line of stdin, one answer
// per line of stdout. In this program "json" and "config" are names of files.
#include <fstream>
#include <iostream>
#include <sstream>

#include "tests/support/text_answers.h"

namespace {

std::string read_file(const std::string& path) {
    if (path.empty()) return {};
    std::ifstream in(path, std::ios::binary);
    std::ostringstream content;
    content << in.rdbuf();
    return content.str();
}

}  // namespace

int main() {
    moex::TextAnswers answers;
    for (std::string line; std::getline(std::cin, line);) {
        if (line.empty()) continue;
        auto request = moex::TextAnswers::Question::parse(line);
        for (const char* file : {"json", "config"})
            if (request.contains(file)) request[file] = read_file(request[file]);
        std::cout << answers.answer(request).dump() << std::endl;
    }
    return 0;
}
