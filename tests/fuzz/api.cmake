# JSON bodies of the API.
moex_fuzz(api_body SOURCES hub/api/openai_request.cpp hub/api/text_inputs.cpp hub/model/strict_json.cpp
          ${protocol_sources} LIBS lz4)
