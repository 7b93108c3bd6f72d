// Reads the small checkpoints of tests/golden/formats, one per weight format, and compares every
// weight with the weights that an independent script computed. Packs them, too: codes that fit are
// taken over bit for bit, all others are quantised again and the loss is measured.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "hub/base/sha256.h"
#include "hub/model/chat_template.h"
#include "hub/model/pack/pack_plan.h"
#include "hub/model/pack/packer.h"
#include "hub/model/pack/readers/open_model.h"
#include "hub/model/package/package.h"
#include "protocol/expert_reference.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/repository.h"

namespace moex {
namespace {

using test::TempFolder;
namespace fs = std::filesystem;
const fs::path formats_folder = repository() / "tests/golden/formats";

std::vector<fs::path> format_folders() {
    std::vector<fs::path> folders;
    for (const auto& entry : fs::directory_iterator(formats_folder))
        if (entry.is_directory()) folders.push_back(entry.path());
    std::sort(folders.begin(), folders.end());
    return folders;
}

// Copies a checkpoint to a folder where a test may change it.
void copy_checkpoint(const fs::path& from, const fs::path& to) {
    fs::remove_all(to);
    fs::create_directories(to);
    for (const auto& entry : fs::directory_iterator(from))
        fs::copy_file(entry.path(), to / entry.path().filename());
}

// Reads a tensor in windows of `window_rows` rows.
std::vector<float> floats_of(const TensorReader& reader, std::uint64_t window_rows) {
    const std::uint64_t row_size = reader.info().row_size(), count = reader.info().num_elements(),
                        rows = count / row_size;
    std::vector<float> values(count);
    Bytes scratch;
    for (std::uint64_t row = 0; row < rows; row += window_rows) {
        const std::uint64_t num = std::min(window_rows, rows - row);
        const auto out = std::span(values).subspan(row * row_size, num * row_size);
        const Status status = reader.read_rows(row, out, scratch);
        EXPECT_TRUE(status.ok()) << status.error().message;
        if (!status.ok()) return values;
    }
    return values;
}

TEST(ReadersTest, EveryFormatGivesTheWeightsOfItsCodes) {
    const auto folders = format_folders();
    ASSERT_GE(folders.size(), 16u);
    for (const fs::path& folder : folders) {
        SCOPED_TRACE(folder.filename().string());
        const auto expected = nlohmann::json::parse(test::read_file(folder / "expected.json"));
        const auto source = open_model_source(folder);
        ASSERT_TRUE(source.ok()) << source.error().message;
        EXPECT_EQ(source->readers.size() - source->readers.count("rope_freqs.weight"),
                  expected.size());

        for (const auto& [name, wanted] : expected.items()) {
            SCOPED_TRACE(name);
            const TensorReader* const reader = source->find(name);
            ASSERT_NE(reader, nullptr);
            EXPECT_EQ(reader->info().shape, wanted.at("shape").get<std::vector<std::uint64_t>>());
            const auto whole = floats_of(*reader, 1u << 20);
            EXPECT_EQ(whole[0], wanted.at("first")[0].get<float>());
            EXPECT_EQ(whole[3], wanted.at("first")[3].get<float>());
            EXPECT_EQ(to_hex(sha256(std::as_bytes(std::span(whole)))),
                      wanted.at("sha256").get<std::string>());
            EXPECT_EQ(floats_of(*reader, 3), whole) << "windows of 3 rows";
        }
    }
}

class FormatPackTest : public testing::Test {
  protected:
    // Packs a checkpoint of tests/golden/formats.
    std::shared_ptr<const ModelPackage> pack(const std::string& name,
                                             const PackOptions& options = {}) {
        const fs::path out = folder_ / text(name, packed_++);
        const auto report = pack_checkpoint(formats_folder / name, out, options, threads_, {});
        EXPECT_TRUE(report.ok()) << report.error().message;
        if (!report.ok()) return nullptr;
        report_ = *report;
        auto package = ModelPackage::open(out);
        EXPECT_TRUE(package.ok()) << package.error().message;
        return package.ok() ? *package : nullptr;
    }
    static ExpertWeights expert_of(const ModelPackage& package, std::uint32_t expert) {
        const auto blob = package.blob(0, expert);
        EXPECT_TRUE(blob.ok());
        const auto view = view_expert_blob(*blob, package.expert_shape(), package.expert_dtype());
        EXPECT_TRUE(view.ok());
        return dequantize_expert(*view);
    }

    TempFolder folder_{"formats"};
    ThreadPool threads_{2};
    PackReport report_;
    int packed_ = 0;
};

TEST_F(FormatPackTest, Int4GroupsAreTakenOverBitForBit) {
    for (const char* name :
         {"gptq-g32-asym", "gptq-g64-v2", "gptq-row-sym", "awq-g32", "gguf-moe-q4_0"}) {
        SCOPED_TRACE(name);
        const auto exact = pack(name, {.expert_dtype = ExpertDtype::f32, .hub_f32 = true});
        const auto kept = pack(name, {.hub_f32 = true, .keep_format = true});
        ASSERT_TRUE(exact && kept);
        EXPECT_TRUE(report_.losses.requantized.empty());
        ASSERT_EQ(report_.losses.kept.size(), 1u);
        EXPECT_EQ(report_.losses.kept.begin()->second, 6u);  // 2 experts, 3 matrices
        for (const std::uint32_t expert : {0u, 1u}) {
            const ExpertWeights a = expert_of(*exact, expert), b = expert_of(*kept, expert);
            EXPECT_EQ(a.gate, b.gate);
            EXPECT_EQ(a.up, b.up);
            EXPECT_EQ(a.down, b.down);
        }
    }
}

TEST_F(FormatPackTest, Mxfp4IsTakenOverBitForBit) {
    const auto exact = pack("mxfp4", {.expert_dtype = ExpertDtype::f32, .hub_f32 = true});
    const auto kept = pack("mxfp4", {.hub_f32 = true, .keep_format = true});
    ASSERT_TRUE(exact && kept);
    EXPECT_EQ(kept->expert_dtype(), ExpertDtype::mxfp4);
    EXPECT_EQ(kept->expert_shape().group_size, 32u);
    EXPECT_TRUE(report_.losses.requantized.empty());
    EXPECT_EQ(report_.losses.kept, (std::map<std::string, std::uint64_t>{{"MXFP4", 6}}));
    for (const std::uint32_t expert : {0u, 1u}) {
        const ExpertWeights a = expert_of(*exact, expert), b = expert_of(*kept, expert);
        EXPECT_EQ(a.gate, b.gate);
        EXPECT_EQ(a.up, b.up);
        EXPECT_EQ(a.down, b.down);
        EXPECT_EQ(a.down_bias, b.down_bias);
    }
}

// What pack made of MXFP4 before it kept it: INT4, with a loss.
TEST_F(FormatPackTest, Mxfp4BecomesInt4WhereThatIsWanted) {
    const auto again = pack("mxfp4", {.keeps_mxfp4 = false, .hub_f32 = true});
    ASSERT_TRUE(again);
    EXPECT_EQ(again->expert_dtype(), ExpertDtype::int4);
    ASSERT_FALSE(report_.losses.requantized.empty());
    for (const auto& [kind, loss] : report_.losses.requantized) {
        std::cout << kind << ": nmse " << loss.nmse() << '\n';
        EXPECT_GT(loss.nmse(), 1e-4) << kind;
        EXPECT_LT(loss.nmse(), 2e-2) << kind;
    }
    const auto refused = pack_checkpoint(formats_folder / "fp8-block", folder_ / "refused",
                                         {.expert_dtype = ExpertDtype::mxfp4}, threads_, {});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("in MXFP4"), std::string::npos)
        << refused.error().message;
}

// Returns the squared error of `b` relative to the squares of `a`.
double nmse_of(const std::vector<float>& a, const std::vector<float>& b) {
    double error = 0, squares = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
        squares += double{a[i]} * a[i];
    }
    return error / squares;
}

TEST_F(FormatPackTest, OtherFormatsAreQuantisedAgainWithTheirLossMeasured) {
    for (const char* name : {"fp8-block", "fp8-tensor", "gptq-g32-act", "awq-g16"}) {
        SCOPED_TRACE(name);
        const auto exact = pack(name, {.expert_dtype = ExpertDtype::f32, .hub_f32 = true});
        const auto again = pack(name, {.hub_f32 = true});
        ASSERT_TRUE(exact && again);

        std::vector<float> gate, rounded;
        for (const std::uint32_t expert : {0u, 1u}) {
            const ExpertWeights a = expert_of(*exact, expert), b = expert_of(*again, expert);
            gate.insert(gate.end(), a.gate.begin(), a.gate.end());
            rounded.insert(rounded.end(), b.gate.begin(), b.gate.end());
        }
        const double wanted = nmse_of(gate, rounded);
        bool is_measured = false;
        for (const auto& [kind, loss] : report_.losses.requantized) {
            if (!kind.starts_with("experts.gate_proj")) continue;
            is_measured = true;
            EXPECT_NEAR(loss.nmse(), wanted, 1e-6) << kind;
            EXPECT_GE(loss.worst_nmse, loss.nmse() * 0.999);
            EXPECT_NE(loss.worst.find("gate_proj"), std::string::npos);
        }
        EXPECT_TRUE(is_measured);
        EXPECT_GT(wanted, 1e-5);
        EXPECT_LT(wanted, 0.05);

        const auto refused = pack_checkpoint(formats_folder / name, folder_ / "refused",
                                             {.hub_f32 = true, .keep_format = true}, threads_, {});
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.error().message.find("--keep-format"), std::string::npos);
        EXPECT_NE(refused.error().message.find("proj"), std::string::npos);
    }
}

TEST_F(FormatPackTest, WidthThatIsNoMultipleOf32IsPaddedWithZeros) {
    const auto package = pack("fp8-block", {.expert_dtype = ExpertDtype::f32});
    ASSERT_TRUE(package);
    EXPECT_EQ(package->expert_shape().moe_intermediate_size, 64u);  // 40 in the checkpoint
    const ExpertWeights expert = expert_of(*package, 1);
    for (std::size_t i = 40 * 64; i < 64 * 64; ++i) ASSERT_EQ(expert.gate[i], 0) << i;
    for (std::size_t row = 0; row < 64; ++row)
        for (std::size_t column = 40; column < 64; ++column)
            ASSERT_EQ(expert.down[row * 64 + column], 0) << row << ", " << column;
    EXPECT_NE(expert.gate[39 * 64], 0);
    EXPECT_NE(expert.down[39], 0);

    const ExpertWeights codes = expert_of(*pack("fp8-block"), 1);
    for (std::size_t i = 40 * 64; i < 64 * 64; ++i) ASSERT_EQ(codes.up[i], 0) << i;
}

TEST_F(FormatPackTest, GgufBringsItsTokenizerAndTemplate) {
    const auto package = pack("gguf-moe-q4_0");
    ASSERT_TRUE(package);
    EXPECT_EQ(package->generation_defaults().eos_token_ids, std::vector<std::uint32_t>{15});
    const auto config = package->tokenizer_file("tokenizer_config.json");
    const auto tokenizer = Tokenizer::load(package->tokenizer_file("tokenizer.json").value_or(""),
                                           config.value_or(""));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    EXPECT_EQ((*tokenizer)->encode("hello hello<|end|>", SpecialTokens::parse),
              (std::vector<TokenId>{8, 9, 15}));

    const auto chat = ChatTemplate::from_tokenizer_config(*config);
    ASSERT_TRUE(chat.ok()) << chat.error().message;
    const auto text = (*chat)->render(
        {{"messages", nlohmann::ordered_json::array({{{"role", "user"}, {"content", "hello"}}})}});
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_EQ(*text, "hello<|end|>");
}

TEST_F(FormatPackTest, PlanHasTheSizesOfThePackage) {
    for (const char* name : {"gptq-g32-act", "fp8-block", "gguf-k"}) {
        SCOPED_TRACE(name);
        const auto plan = plan_package(formats_folder / name, {.hub_f32 = true});
        ASSERT_TRUE(plan.ok()) << plan.error().message;
        const auto package = pack(name, {.hub_f32 = true});
        ASSERT_TRUE(package);
        EXPECT_EQ(plan->output_bytes(), report_.output_bytes);
        EXPECT_EQ(plan->input_bytes, report_.input_bytes);
        EXPECT_EQ(plan->group_size, package->expert_shape().group_size);
        EXPECT_EQ(plan->num_blobs, report_.num_blobs);
    }

    // The inputs of `down` are one group, so that desc_act changes nothing there.
    const auto gptq = plan_package(formats_folder / "gptq-g32-act", {});
    EXPECT_EQ(gptq->kept, (std::map<std::string, std::uint64_t>{{"GPTQ", 2}}));
    EXPECT_EQ(gptq->converted, (std::map<std::string, std::uint64_t>{{"GPTQ", 4}}));
    EXPECT_EQ(gptq->contributors(gptq->blob_bytes), 2u);
    EXPECT_EQ(gptq->contributors(3 * gptq->blob_bytes), 1u);
    EXPECT_EQ(gptq->contributors(gptq->blob_bytes - 1), 0u);
}

// Older GPTQ models have their settings in another file, their weights under another name, and a
// bias of zeros beside every module.
TEST_F(FormatPackTest, OlderGptqFoldersAreRead) {
    copy_checkpoint(formats_folder / "gptq-g32-asym", folder_ / "in");
    auto config = nlohmann::json::parse(test::read_file(folder_ / "in/config.json"));
    config.erase("quantization_config");
    test::write_file(folder_ / "in/config.json", config.dump());
    test::write_file(folder_ / "in/quantize_config.json",
                     R"({"bits": 4, "group_size": 32, "desc_act": false, "sym": false})");
    fs::rename(folder_ / "in/model.safetensors", folder_ / "in/gptq_model-4bit-32g.safetensors");
    const auto with_bias = [&](char value) {
        std::string file = test::read_file(formats_folder / "gptq-g32-asym/model.safetensors");
        std::uint64_t header = 0;
        std::memcpy(&header, file.data(), 8);
        auto object = nlohmann::json::parse(file.substr(8, header));
        const std::string data = file.substr(8 + header);
        object["model.layers.0.self_attn.o_proj.bias"] = {
            {"dtype", "F16"}, {"shape", {64}}, {"data_offsets", {data.size(), data.size() + 128}}};
        test::write_file(folder_ / "in/gptq_model-4bit-32g.safetensors",
                         test::raw_safetensors(object.dump(), data + std::string(128, value)));
    };

    with_bias(0);
    ASSERT_TRUE(
        pack_checkpoint(folder_ / "in", folder_ / "older", {.name = "m"}, threads_, {}).ok());
    const auto older = *ModelPackage::open(folder_ / "older");
    const auto newer = pack("gptq-g32-asym", {.name = "m"});
    for (const std::uint32_t expert : {0u, 1u})
        EXPECT_EQ(older->blob_hash(0, expert), newer->blob_hash(0, expert));
    with_bias(1);
    const auto report = pack_checkpoint(folder_ / "in", folder_ / "biased", {}, threads_, {});
    ASSERT_FALSE(report.ok());
    EXPECT_NE(report.error().message.find("no such bias"), std::string::npos);
}

TEST_F(FormatPackTest, GgufFactorsBecomeTheScalingOfLlama3) {
    const auto package = pack("gguf-llama");
    ASSERT_TRUE(package);
    const RopeScaling& scaling = package->config().layers[0].rope.scaling;
    EXPECT_EQ(scaling.factor, 8.0);
    EXPECT_EQ(scaling.low_freq_factor, 1.0);
    EXPECT_EQ(scaling.high_freq_factor, 4.0);
    EXPECT_EQ(scaling.original_context_tokens, 8192u);
    EXPECT_EQ(pack("gguf-qwen2")->config().layers[0].rope.scaling.factor, 1.0);

    copy_checkpoint(formats_folder / "gguf-llama", folder_ / "in");
    std::string file = test::read_file(folder_ / "in/model.gguf");
    // The file's RoPE factors are six times 1, then 4.68 and 8.
    std::string ones;
    for (int i = 0; i < 6; ++i) ones += std::string("\x00\x00\x80\x3f", 4);
    const std::size_t at = file.find(ones);
    ASSERT_NE(at, std::string::npos);
    const float five = 5;
    file.replace(at + 28, 4, reinterpret_cast<const char*>(&five), 4);
    test::write_file(folder_ / "in/model.gguf", file);
    const auto report = pack_checkpoint(folder_ / "in", folder_ / "out", {}, threads_, {});
    ASSERT_FALSE(report.ok());
    EXPECT_NE(report.error().message.find("rope_freqs.weight"), std::string::npos);
}

TEST_F(FormatPackTest, GgufFileIsNamedByItsStem) {
    copy_checkpoint(formats_folder / "gguf-moe-split", folder_ / "in");
    for (const fs::path& path : {folder_ / "in/model-00001-of-00003.gguf", folder_ / "in"}) {
        const fs::path out = folder_ / text("named", packed_++);
        ASSERT_TRUE(pack_checkpoint(path, out, {}, threads_, {}).ok());
        EXPECT_EQ((*ModelPackage::open(out))->name(), path.extension() == ".gguf" ? "model" : "in");
    }
}

TEST_F(FormatPackTest, EveryFormatPacksInEveryType) {
    for (const fs::path& folder : format_folders())
        for (const ExpertDtype dtype : {ExpertDtype::int4, ExpertDtype::bf16, ExpertDtype::f32})
            EXPECT_TRUE(pack(folder.filename().string(), {.expert_dtype = dtype}))
                << folder << " " << expert_dtype_name(dtype);
}

// Changes files of a checkpoint and expects an error with certain words.
class DamagedFormatTest : public FormatPackTest {
  protected:
    fs::path begin(const std::string& name) {
        copy_checkpoint(formats_folder / name, folder_ / "in");
        return folder_ / "in";
    }
    void refused(std::initializer_list<std::string_view> words, const fs::path& in = {}) {
        const auto report = pack_checkpoint(in.empty() ? folder_ / "in" : in, folder_ / "out", {},
                                            threads_, {});
        ASSERT_FALSE(report.ok());
        const std::string& message = report.error().message;
        for (const std::string_view word : words)
            EXPECT_NE(message.find(word), std::string::npos)
                << "\"" << word << "\" not in: " << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        EXPECT_LT(message.size(), 700u) << message;
        EXPECT_FALSE(fs::exists(folder_ / "out")) << message;
    }
    // Replaces a text of the same length in a file, at its first place.
    void replace(const fs::path& path, std::string_view from, std::string_view to) {
        std::string content = test::read_file(path);
        const std::size_t at = content.find(from);
        ASSERT_NE(at, std::string::npos) << from;
        ASSERT_EQ(from.size(), to.size());
        content.replace(at, from.size(), to);
        test::write_file(path, content);
    }
    // Changes a member of quantization_config.
    void configure(const std::string& key, const nlohmann::json& value) {
        auto config = nlohmann::json::parse(test::read_file(folder_ / "in/config.json"));
        config["quantization_config"][key] = value;
        test::write_file(folder_ / "in/config.json", config.dump());
    }
    // Sets `count` bytes of a tensor's data, from `first` on.
    void set_bytes(const std::string& tensor, std::size_t first, const std::string& bytes) {
        const fs::path path = folder_ / "in/model.safetensors";
        std::string content = test::read_file(path);
        std::uint64_t header = 0;
        std::memcpy(&header, content.data(), 8);
        const auto object = nlohmann::json::parse(content.substr(8, header));
        const std::size_t at = 8 + header +
                               object.at(tensor).at("data_offsets")[0].get<std::size_t>() + first;
        content.replace(at, bytes.size(), bytes);
        test::write_file(path, content);
    }
};

TEST_F(DamagedFormatTest, DamagedFp8IsRefused) {
    const std::string gate = "model.layers.0.mlp.experts.1.gate_proj.weight",
                      q = "model.layers.0.self_attn.q_proj.weight";
    begin("fp8-block");
    set_bytes(gate, 5 * 64 + 7, "\x7f");
    refused({gate, "[5, 7]", "finite"});
    begin("fp8-block");
    set_bytes(q + "_scale_inv", 0, std::string("\x00\x00\x80\x7f", 4));
    refused({q, "finite"});
    begin("fp8-block");
    replace(folder_ / "in/model.safetensors", q + "_scale_inv", q + "_scale_xxx");
    refused({q + "_scale_inv", "missing"});
    begin("fp8-block");
    configure("weight_block_size", {16, 32});
    refused({"_scale_inv", "blocks of 16 by 32"});
    begin("fp8-block");
    configure("weight_block_size", {0, 32});
    refused({"weight_block_size", "[0,32]"});
    begin("fp8-channel");
    replace(folder_ / "in/model.safetensors", "\"shape\": [16, 1]", "\"shape\": [4, 4] ");
    EXPECT_TRUE(pack_checkpoint(folder_ / "in", folder_ / "fine", {}, threads_, {}).ok())
        << "16 scales of 16 rows";
    begin("fp8-block");
    configure("fmt", "e5m2");
    refused({"fmt", "e5m2"});
}

TEST_F(DamagedFormatTest, DamagedGptqIsRefused) {
    const std::string module = "model.layers.0.mlp.experts.0.up_proj.";
    begin("gptq-g32-act");
    set_bytes(module + "g_idx", 4 * 9, std::string("\x07\x00\x00\x00", 4));
    refused({module + "g_idx", "has 7 at [9]", "0..1"});
    begin("gptq-g32-act");
    set_bytes(module + "g_idx", 0, "\xff\xff\xff\xff");
    refused({module + "g_idx", "has -1 at [0]"});
    begin("gptq-g32-asym");
    replace(folder_ / "in/model.safetensors", module + "qzeros", module + "qxeros");
    refused({module + "qzeros", "missing"});
    begin("gptq-g32-asym");
    configure("group_size", 16);
    refused({"scales", "wanted [2, 64]", "groups of 16"});
    begin("gptq-g32-asym");
    configure("bits", 8);
    refused({"gptq", "bits 8"});
    begin("gptq-g32-asym");
    configure("checkpoint_format", "marlin");
    refused({"checkpoint_format", "marlin"});
    begin("gptq-g32-asym");
    set_bytes(module + "scales", 6, std::string("\x00\x7c", 2));
    refused({module, "scale", "finite", "row 3"});
}

TEST_F(DamagedFormatTest, DamagedAwqIsRefused) {
    const std::string module = "model.layers.0.mlp.experts.1.down_proj.";
    begin("awq-g32");
    configure("version", "gemv");
    refused({"awq", "gemv"});
    begin("awq-g32");
    configure("zero_point", false);
    refused({"zero_point"});
    begin("awq-g32");
    configure("group_size", 0);
    refused({"group_size", "0"});
    begin("awq-g32");
    replace(folder_ / "in/model.safetensors", module + "scales", module + "scaled");
    refused({module + "scales", "missing"});
    begin("awq-g32");
    set_bytes(module + "scales", 2, std::string("\x01\x7e", 2));
    refused({module, "scale", "finite", "row 1"});
    begin("awq-g32");
    configure("group_size", 64);
    refused({"scales", "groups of 64"});
}

TEST_F(DamagedFormatTest, DamagedMxfp4IsRefused) {
    const std::string down = "model.layers.0.mlp.experts.down_proj";
    begin("mxfp4");
    set_bytes(down + "_scales", 65, "\xff");
    refused({down, "[1, 1, 0]", "finite"});
    begin("mxfp4");
    replace(folder_ / "in/model.safetensors", down + "_scales", down + "_scalez");
    refused({down + "_scales", "missing"});
    begin("mxfp4");
    replace(folder_ / "in/model.safetensors", "[2, 64, 1, 16]", "[2, 64, 2, 8] ");
    refused({down + "_blocks", "wanted U8"});
    begin("mxfp4");
    replace(folder_ / "in/model.safetensors", "[2, 64, 1, 16]", "[2, 32, 2, 16]");
    refused({down + "_scales", "wanted U8 [2, 32, 2]"});
    begin("mxfp4");
    const std::string whole = test::read_file(folder_ / "in/model.safetensors");
    test::write_file(folder_ / "in/model.safetensors", whole.substr(0, whole.size() - 1));
    refused({"model.safetensors", "truncated"});
}

TEST_F(DamagedFormatTest, UnknownMethodsAreRefusedByName) {
    for (const char* method : {"compressed-tensors", "modelopt", "bitsandbytes", "hqq"}) {
        begin("gptq-g32-asym");
        configure("quant_method", method);
        refused({"config.json", method, "readable"});
    }
}

TEST_F(DamagedFormatTest, DamagedGgufIsRefused) {
    const auto damage = [&](std::size_t at, const std::string& bytes) {
        begin("gguf-moe-q4_0");
        std::string content = test::read_file(folder_ / "in/model.gguf");
        content.replace(at, bytes.size(), bytes);
        test::write_file(folder_ / "in/model.gguf", content);
    };
    damage(0, "GGML");
    refused({"model.gguf", "not a GGUF file"});
    damage(4, "\x02");
    refused({"version 2", "wanted version 3"});
    damage(8, std::string(8, '\xff'));
    refused({"tensors", "at most"});
    damage(24, std::string(6, '\x00') + "\xff\xff");
    refused({"model.gguf", "truncated"});

    begin("gguf-moe-q4_0");
    const fs::path path = folder_ / "in/model.gguf";
    const std::string whole = test::read_file(path);
    for (const std::size_t size :
         {whole.size() - 40, whole.size() / 2, std::size_t{300}, std::size_t{20}, std::size_t{0}}) {
        test::write_file(path, whole.substr(0, size));
        refused({"model.gguf"});
    }
}

TEST_F(DamagedFormatTest, RandomDamageToGgufNeverCrashes) {
    std::mt19937 random(20);
    for (const char* name : {"gguf-moe-q4_0", "gguf-llama"}) {
        const fs::path path = begin(name) / "model.gguf";
        const std::string whole = test::read_file(path);
        std::size_t opened = 0;
        for (int round = 0; round < 400; ++round) {
            std::string damaged = whole;
            for (std::uint32_t flips = random() % 3 + 1; flips > 0; --flips)
                damaged[random() % 2600] = static_cast<char>(random());
            test::write_file(path, damaged);
            const auto source = open_model_source(path);
            if (!source.ok()) {
                EXPECT_NE(source.error().message.find("model.gguf"), std::string::npos);
                continue;
            }
            ++opened;
            for (const auto& [tensor, reader] : source->readers) {
                std::vector<float> values(reader->info().num_elements());
                Bytes scratch;
                if (!values.empty() && !reader->read_rows(0, values, scratch).ok()) continue;
            }
        }
        EXPECT_GT(opened, 0u) << "damage to a name or a number that no tensor depends on";
    }
}

TEST_F(DamagedFormatTest, RotatedTensorsOfHalfAHeadAreRefused) {
    const fs::path path = begin("gguf-llama") / "model.gguf";
    std::string file = test::read_file(path);
    const std::string name = "blk.0.attn_k.bias";
    file[file.find(name) + name.size() + 4] = 12;  // 16 in the fixture
    test::write_file(path, file);
    refused({name, "is [12]", "whole heads (16)"});
}

TEST_F(DamagedFormatTest, UnknownGgufTypesAndFamiliesAreRefusedByName) {
    begin("gguf-moe-q4_0");
    const fs::path path = folder_ / "in/model.gguf";
    const std::string whole = test::read_file(path);
    const std::string name = "blk.0.ffn_up_exps.weight";
    const std::size_t type_at = whole.find(name) + name.size() + 4 + 3 * 8;
    for (const auto& [type, shown] :
         {std::pair('\x0a', "Q2_K"), {'\x14', "IQ4_NL"}, {'\x7f', "type 127"}}) {
        std::string changed = whole;
        changed[type_at] = type;
        test::write_file(path, changed);
        refused({name, shown, "readable: F32"});
    }
    test::write_file(path, whole);
    replace(path, "qwen3moe", "qwen9moe");
    refused({"general.architecture", "qwen9moe", "qwen3moe"});
}

TEST_F(DamagedFormatTest, IncompleteSplitModelsAreRefused) {
    const fs::path in = begin("gguf-moe-split");
    refused({"00002-of-00003", "name the first one"}, in / "model-00002-of-00003.gguf");
    fs::remove(in / "model-00003-of-00003.gguf");
    refused({"model-00003-of-00003.gguf", "No such file"});
    fs::copy_file(in / "model-00002-of-00003.gguf", in / "model-00003-of-00003.gguf");
    refused({"model-00003-of-00003.gguf", "split.no is 1, wanted 2"});
}

}  // namespace
}  // namespace moex
