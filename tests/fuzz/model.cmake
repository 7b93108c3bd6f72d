# Files of checkpoints and packages: the safetensors header, config.json, manifest.json and generation_config.json.
moex_fuzz_batches(model_file_sources model_files hub/model/config.cpp hub/model/config_fields.cpp
    hub/model/config_json.cpp hub/model/families.cpp hub/model/hf_config.cpp hub/model/layer_plan.cpp
    hub/model/package/safetensors.cpp hub/model/package/tensor.cpp hub/model/package/hub_specs.cpp
    hub/model/package/manifest.cpp)
list(APPEND model_file_sources hub/model/strict_json.cpp ${protocol_sources})
moex_fuzz(safetensors SOURCES ${model_file_sources} LIBS lz4)
moex_fuzz(model_json SOURCES ${model_file_sources} LIBS lz4)
