// Pages of keys and values that enter the decoder and leave it: copies of pages that texts share,
// and pages that are kept elsewhere. kv_rows.h has the two layouts of a page.
#include "protocol/text.h"
#include "web-worker/decoder/copy_command.h"
#include "web-worker/decoder/gpu_decoder.h"

namespace moex {

// Returns the caches of the layers that the rows of a page belong to.
std::vector<gpu::BufferId> GpuDecoder::kv_buffers(bool is_window) const {
    std::vector<gpu::BufferId> buffers;
    for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
        if (!model_.is_delta(layer) && DecoderMemory::has_slots(model_, sizes_, layer) == is_window)
            buffers.push_back(memory_->layers[layer].kv);
    return buffers;
}

KvPageShape GpuDecoder::page_shape(bool is_window) const {
    KvPageShape shape = kv_page_shape(model_, sizes_.kv_kind);
    if (sizes_.window_slots > 0)
        shape.num_layers = static_cast<std::uint32_t>(kv_buffers(is_window).size());
    return shape;
}

void GpuDecoder::copy_page(std::uint32_t from, std::uint32_t to, bool is_window) {
    const std::uint64_t bytes = DecoderMemory::kv_page_bytes(model_, sizes_.kv_kind);
    std::vector<gpu::Command> copies;
    for (const gpu::BufferId kv : kv_buffers(is_window)) {
        copies.push_back(copy_command(kv, bytes * from, kv, bytes * to, bytes));
        copies.back().same_stage = copies.size() > 1;
    }
    device_.submit(copies);
}

void GpuDecoder::read_page(std::uint32_t page, std::span<std::byte> rows,
                           std::function<void(Status)> done, bool is_window) {
    const std::uint64_t layer_bytes = DecoderMemory::kv_page_bytes(model_, sizes_.kv_kind);
    const KvPageShape shape = page_shape(is_window);
    if (rows.size() != kv_rows_of_page(shape))
        return done(Error{ErrorCode::payload_size, text("a page has ", kv_rows_of_page(shape),
                                                        " bytes of rows, not ", rows.size())});
    if (paged_)
        return paged_->get(page, [shape, rows, done](Result<ByteView> bytes) {
            if (!bytes.ok()) return done(bytes.error());
            rows_of_gpu_page(shape, *bytes, rows);
            done({});
        });
    if (page_readback_ == gpu::BufferId{}) {
        auto made = device_.create_buffer(layer_bytes * model_.num_layers,
                                          gpu::BufferUsage::readback, "page");
        if (!made.ok()) return done(made.error());
        page_readback_ = *made;
    }
    std::vector<gpu::Command> copies;
    for (const gpu::BufferId kv : kv_buffers(is_window)) {
        const std::uint64_t to = layer_bytes * copies.size();
        copies.push_back(copy_command(kv, layer_bytes * page, page_readback_, to, layer_bytes));
        copies.back().same_stage = copies.size() > 1;
    }
    device_.submit(copies);
    device_.read_buffer(page_readback_, layer_bytes * copies.size(),
                        [life = life_.watch(), shape, rows, done](Result<ByteView> bytes) {
                            if (!life.alive()) return;
                            if (!bytes.ok()) return done(bytes.error());
                            rows_of_gpu_page(shape, *bytes, rows);
                            done({});
                        });
}

Status GpuDecoder::write_page(std::uint32_t page, ByteView rows, bool is_window) {
    const KvPageShape shape = page_shape(is_window);
    if (rows.size() != kv_rows_of_page(shape))
        return Error{ErrorCode::payload_size, text("a page has ", kv_rows_of_page(shape),
                                                   " bytes of rows, not ", rows.size())};
    const std::uint64_t layer_bytes = DecoderMemory::kv_page_bytes(model_, sizes_.kv_kind);
    page_bytes_.resize(layer_bytes * shape.num_layers);
    gpu_page_of_rows(shape, rows, page_bytes_);
    if (paged_) {
        paged_->put(page, page_bytes_);
        return {};
    }
    std::uint64_t first = 0;
    for (const gpu::BufferId kv : kv_buffers(is_window)) {
        device_.write_buffer(kv, layer_bytes * page,
                             ByteView(page_bytes_).subspan(first, layer_bytes));
        first += layer_bytes;
    }
    return {};
}

}  // namespace moex
