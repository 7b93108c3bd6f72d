# Text: the tokenizer on any bytes (and as a file), chat templates on any source.
set(tokenizer_sources hub/model/utf8.cpp hub/model/strict_json.cpp hub/model/tokenizer.cpp hub/model/tokenizer_added.cpp hub/model/tokenizer_bpe.cpp
    hub/model/tokenizer_parts.cpp hub/model/tokenizer_pattern.cpp protocol/check.cpp)
moex_fuzz(tokenizer SOURCES ${tokenizer_sources} LIBS pcre2-8 utf8proc)
moex_fuzz(chat_template LIBS pcre2-8 utf8proc
  SOURCES ${tokenizer_sources} hub/model/chat_template.cpp hub/model/jinja_filters.cpp hub/model/jinja_lexer.cpp hub/model/jinja_methods.cpp
          hub/model/jinja_operators.cpp hub/model/jinja_expression_parser.cpp hub/model/jinja_parser.cpp hub/model/jinja_render.cpp hub/model/jinja_tests.cpp hub/model/jinja_text.cpp
          hub/model/jinja_value.cpp)
