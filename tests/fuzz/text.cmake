# Text: the tokenizer on any bytes (and as a file), chat templates on any source.
set(template_sources hub/model/chat_template.cpp)
foreach(name expression_parser filters is_tests letter_case lexer methods number_text operators parser renderer
        text_filters text_format text_values value)
  list(APPEND template_sources hub/model/jinja/${name}.cpp)
endforeach()
moex_fuzz_batches(template_sources chat_template ${template_sources})
list(APPEND template_sources ${tokenizer_sources})
moex_fuzz(tokenizer SOURCES ${tokenizer_sources} LIBS pcre2-8 utf8proc)
moex_fuzz(chat_template SOURCES ${template_sources} LIBS pcre2-8 utf8proc)
