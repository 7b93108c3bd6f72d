#include "web-worker/decoder/early_rows.h"

#include <span>
#include <utility>

#include "web-worker/decoder/copy_command.h"

namespace moex {
namespace {

// Bytes of a layer's output that are read to learn that the layer is computed.
constexpr std::uint64_t read_bytes = 16;

}  // namespace

EarlyRows::~EarlyRows() {
    if (readback_ != gpu::BufferId{}) device_.destroy_buffer(readback_);
}

Status EarlyRows::create() {
    MOEX_ASSIGN(made, device_.create_buffer(read_bytes, gpu::BufferUsage::readback, "early"));
    readback_ = made;
    return {};
}

void EarlyRows::begin(std::uint32_t num_rows, std::uint32_t num_pages,
                      std::function<void(std::uint32_t)> on_layers) {
    now_ = Now{
        .turn = ++turns_, .rows = num_rows, .pages = num_pages, .on_layers = std::move(on_layers)};
}

std::uint32_t EarlyRows::advance(std::uint32_t num_loaded, std::uint32_t num_layers) {
    if (!now_ || now_->next_layer == num_loaded) return 0;
    commands_.clear();
    while (now_->next_layer < num_loaded)
        ops_.append_layer(commands_, now_->next_layer++, now_->rows, now_->pages);
    device_.submit(commands_);
    const std::uint32_t num_done = num_loaded == num_layers ? now_->rows : 0;
    if (!is_read_) read();
    return num_done;
}

// Reads bytes that the last submitted layer has written, to learn that it is computed.
void EarlyRows::read() {
    const std::uint32_t num_layers = now_->next_layer, turn = now_->turn;
    const gpu::Command copy = copy_command(memory_.lanes.front().addends, 0, readback_, 0,
                                           read_bytes);
    device_.submit(std::span(&copy, 1));
    is_read_ = true;
    device_.read_buffer(readback_, read_bytes,
                        [this, num_layers, turn, life = life_.watch()](Result<ByteView> bytes) {
                            if (!life.alive()) return;
                            is_read_ = false;
                            if (!bytes.ok() || !now_) return;
                            if (now_->turn == turn) {
                                now_->num_told = num_layers;
                                const auto on_layers = now_->on_layers;
                                on_layers(num_layers);
                            }
                            if (now_ && now_->num_told < now_->next_layer) read();
                        });
}

}  // namespace moex
