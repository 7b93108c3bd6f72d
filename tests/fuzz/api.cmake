# JSON bodies of the API; a bias may name tokens by text.
moex_fuzz_batches(body_sources api_body hub/api/openai_request.cpp hub/api/request_form.cpp hub/api/request_tools.cpp
    hub/api/json_body.cpp hub/api/logit_bias.cpp hub/api/text_inputs.cpp)
list(APPEND body_sources ${tokenizer_sources} ${protocol_sources})
list(REMOVE_DUPLICATES body_sources)
moex_fuzz(api_body SOURCES ${body_sources} LIBS lz4 pcre2-8 utf8proc)
