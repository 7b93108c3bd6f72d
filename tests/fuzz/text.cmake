# Text: the tokenizer on any bytes (and as a file), chat templates on any source.
set(tokenizer_sources hub/model/tokenizer/utf8.cpp hub/model/strict_json.cpp hub/model/tokenizer/tokenizer.cpp hub/model/tokenizer/added_tokens.cpp hub/model/tokenizer/bpe.cpp
    hub/model/tokenizer/tokenizer_json.cpp hub/model/tokenizer/split_pattern.cpp protocol/check.cpp)
moex_fuzz(tokenizer SOURCES ${tokenizer_sources} LIBS pcre2-8 utf8proc)
moex_fuzz(chat_template LIBS pcre2-8 utf8proc
  SOURCES ${tokenizer_sources} hub/model/chat_template.cpp hub/model/jinja/filters.cpp hub/model/jinja/lexer.cpp hub/model/jinja/methods.cpp
          hub/model/jinja/operators.cpp hub/model/jinja/expression_parser.cpp hub/model/jinja/parser.cpp hub/model/jinja/renderer.cpp hub/model/jinja/is_tests.cpp hub/model/jinja/text_values.cpp
          hub/model/jinja/value.cpp)
