# JSON bodies of the API; a bias may name tokens by text.
set(body_sources hub/api/openai_request.cpp hub/api/logit_bias.cpp hub/api/text_inputs.cpp ${tokenizer_sources}
    ${protocol_sources})
list(REMOVE_DUPLICATES body_sources)
moex_fuzz(api_body SOURCES ${body_sources} LIBS lz4 pcre2-8 utf8proc)
