# Grammars of answers, from JSON schemas and from GBNF.
set(grammar_sources)
foreach(name byte_automaton expression gbnf grammar grammar_parse grammar_state grammar_walker json_number
        json_schema json_text parse_ends pattern schema_branches schema_document schema_formats
        schema_keywords schema_negation schema_values)
  list(APPEND grammar_sources hub/api/grammar/${name}.cpp)
endforeach()
moex_fuzz_batches(grammar_sources grammar ${grammar_sources})
list(APPEND grammar_sources ${protocol_sources} hub/model/strict_json.cpp hub/model/tokenizer/utf8.cpp
     hub/model/tokenizer/unicode_utf8proc.cpp)
moex_fuzz(schema SOURCES ${grammar_sources} LIBS lz4 utf8proc INPUT_SECONDS 25)
moex_fuzz(gbnf SOURCES ${grammar_sources} LIBS lz4 utf8proc INPUT_SECONDS 25)
