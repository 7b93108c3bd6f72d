# Files of checkpoints and packages: the safetensors header, config.json, manifest.json and generation_config.json.
moex_fuzz_batches(model_file_sources model_files hub/model/config.cpp hub/model/config_fields.cpp
    hub/model/config_json.cpp hub/model/families.cpp hub/model/hf_config.cpp hub/model/layer_plan.cpp
    hub/model/package/safetensors.cpp hub/model/package/tensor.cpp hub/model/package/hub_specs.cpp
    hub/model/package/manifest.cpp)
list(APPEND model_file_sources hub/model/strict_json.cpp ${protocol_sources})
moex_fuzz(safetensors SOURCES ${model_file_sources} LIBS lz4)
moex_fuzz(model_json SOURCES ${model_file_sources} LIBS lz4)
# GGUF files: the header, and the tokenizer that is made of it.
set(gguf_sources hub/base/files.cpp hub/base/sha256.cpp)
foreach(name gguf_blocks gguf_file gguf_tokenizer tensor_reader)
  list(APPEND gguf_sources hub/model/pack/readers/${name}.cpp)
endforeach()
moex_fuzz_batches(gguf_sources gguf ${gguf_sources})
list(APPEND gguf_sources ${model_file_sources} ${tokenizer_sources})
list(REMOVE_DUPLICATES gguf_sources)
moex_fuzz(gguf SOURCES ${gguf_sources} LIBS lz4 pcre2-8 utf8proc crypto)
