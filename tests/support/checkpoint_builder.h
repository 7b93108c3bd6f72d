// Builds small Qwen3-MoE checkpoints for tests. The builder writes safetensors files with its own
// code, so that tests find an error that the program's reader and writer share. Weights come from a
// printed seed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/model/config.h"

namespace moex::test {

// A folder below the system's folder for temporary files. The destructor removes it.
class TempFolder {
  public:
    explicit TempFolder(std::string_view name);
    ~TempFolder();
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;
    const std::filesystem::path& path() const { return path_; }
    std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

void write_file(const std::filesystem::path& path, std::string_view content);
std::string read_file(const std::filesystem::path& path);

struct TestTensor {
    std::string name;
    std::string dtype = "BF16";  // BF16, F16, F32
    std::vector<std::uint64_t> shape;
    std::vector<float> values;
    std::uint64_t num_elements() const;
};
// Returns a safetensors file of `header` and `data` without any check, for files that are damaged
// on purpose.
std::string raw_safetensors(std::string_view header, std::string_view data);
void write_safetensors(const std::filesystem::path& path, const std::vector<TestTensor>& tensors);

struct CheckpointOptions {
    std::uint64_t seed = 1;
    std::string dtype = "BF16";
    bool fused = false;  // true: one tensor holds all experts of a layer
    bool tied = false;
    bool attention_bias = false;
    bool newer_config = false;     // true: config.json as transformers 5 writes it
    std::uint32_t num_shards = 1;  // with 2 or more, an index file is written, too
    std::uint32_t hidden_size = 64, moe_intermediate_size = 32, num_experts = 4, num_layers = 3,
                  vocab_size = 96;
    std::vector<std::uint32_t> mlp_only_layers = {1};
};

class CheckpointBuilder {
  public:
    explicit CheckpointBuilder(CheckpointOptions options = {});
    nlohmann::json config;            // a test may change the configuration before write()
    std::vector<TestTensor> tensors;  // a test may change the tensors before write()
    TestTensor& tensor(std::string_view name);
    void remove(std::string_view name);
    void write(const std::filesystem::path& directory) const;

  private:
    void write_config();
    TestTensor& add(std::string name, std::vector<std::uint64_t> shape);
    // The names of the added tensors begin with `at`, which ends with a dot.
    void add_attention(const std::string& at);
    void add_mlp(const std::string& at, std::uint64_t inner);
    void add_experts(const std::string& at);

    CheckpointOptions options_;
    std::mt19937_64 random_;
    std::normal_distribution<float> normal_{0.0f, 0.05f};
};

// Writes a checkpoint of about `wanted_bytes` in bf16 as a stream, for memory tests. Its experts
// repeat the same few pages.
void write_large_checkpoint(const std::filesystem::path& directory, std::uint64_t wanted_bytes);

}  // namespace moex::test
