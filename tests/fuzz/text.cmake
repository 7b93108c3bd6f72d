# Text: the tokenizer on any bytes (and as a file), chat templates on any source.
set(tokenizer_sources hub/model/strict_json.cpp protocol/check.cpp)
foreach(name utf8 tokenizer added_tokens bpe pattern_spelling regex_pcre2 split_pattern tokenizer_json unicode_utf8proc)
  list(APPEND tokenizer_sources hub/model/tokenizer/${name}.cpp)
endforeach()
set(template_sources ${tokenizer_sources} hub/model/chat_template.cpp)
foreach(name expression_parser filters is_tests letter_case lexer methods number_text operators parser renderer
        text_format text_values value)
  list(APPEND template_sources hub/model/jinja/${name}.cpp)
endforeach()
moex_fuzz(tokenizer SOURCES ${tokenizer_sources} LIBS pcre2-8 utf8proc)
moex_fuzz(chat_template SOURCES ${template_sources} LIBS pcre2-8 utf8proc)
