// The tokenizer and the chat template as a tab runs them, compiled for Node: takes a request of
// text_answers.h and returns its answer.
#include <emscripten.h>

#include "tests/support/text_answers.h"

extern "C" EMSCRIPTEN_KEEPALIVE const char* text_answer(const char* request) {
    static moex::TextAnswers answers;
    static std::string answer;
    answer = answers.answer(moex::TextAnswers::Question::parse(request)).dump();
    return answer.c_str();
}
