// The shards of a checkpoint that is packed while it is downloaded (`pull --pack --stream`), so
// that the whole checkpoint is never on the disk.
//
// The packer opens all shards at its start and reads each weight once, the experts layer by layer.
// So every shard is here from the beginning as a sparse file: its header, and a hole of the size of
// its tensors. Before a layer, the shards with its experts are downloaded, checked against their
// hashes and moved into the sparse files. After a layer, the bytes of its experts become holes
// again. The hub's own tensors, a small part, stay until the packer reads them at its end.
//   FOLDER/.stream/model-00001-of-00016.safetensors   a sparse file
//   FOLDER/.stream/model-00001-of-00016.safetensors.here   an empty file: the shard has arrived
// The sparse files keep one time of modification, so that the packer knows an interrupted package
// again.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hub/fetch/repository.h"
#include "hub/model/package/safetensors.h"

namespace moex {

class StreamedShards {
  public:
    // The owner's part: how to get bytes. `read_start` returns the first bytes of a file.
    // `fetch` downloads a file into FOLDER and checks its hash.
    struct Source {
        std::function<Result<Bytes>(const RepositoryFile& file, std::uint64_t num_bytes)>
            read_start;
        std::function<Status(const RepositoryFile& file)> fetch;
    };

    // Makes the sparse files of `chosen`, the files of the repository. Its other files, which are
    // in FOLDER already, are linked beside them. Continues an interrupted stream.
    static Result<StreamedShards> create(const std::filesystem::path& folder,
                                         const std::vector<RepositoryFile>& chosen, Source source);

    const std::filesystem::path& directory() const { return directory_; }  // FOLDER/.stream
    // Downloads the shards that have experts of the layer and have not arrived.
    Status bring_layer(std::uint32_t layer);
    Status bring_all();
    // Gives the disk space of the layer's experts back.
    Status drop_layer(std::uint32_t layer);
    // Removes the sparse files, and the files in FOLDER that this stream has made.
    Status remove(const std::vector<RepositoryFile>& chosen);

  private:
    struct Shard {
        RepositoryFile file;
        std::uint64_t header_bytes = 0;  // with the eight bytes before the header
        std::vector<SafetensorsEntry> tensors;
    };
    Status add(const RepositoryFile& file);
    Status bring(const Shard& shard);
    std::filesystem::path mark_of(const RepositoryFile& file) const {
        return directory_ / (file.path + ".here");
    }

    std::filesystem::path folder_, directory_;
    Source source_;
    std::vector<Shard> shards_;
};

// Returns the number of the layer whose experts the tensor belongs to; nullopt: the tensor is no
// part of an expert of the model's layers. "model.layers.3.mlp.experts.7.up_proj.weight" is of
// layer 3, "mtp.layers.0.mlp.experts.7.up_proj.weight" of none.
std::optional<std::uint32_t> layer_of_expert_tensor(std::string_view name);

}  // namespace moex
