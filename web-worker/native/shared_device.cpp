#include "web-worker/native/shared_device.h"

#include <map>
#include <utility>

#include "web-worker/gpu/device_decorator.h"

namespace moex::native {

struct SharedDevice::Opened {
    std::uint64_t number = 0;
    bool is_lost = false, answers_here = false;
    // The handler of each lent device, called when the open device is lost.
    std::map<const Lent*, std::function<void(gpu::Loss)>> lost;
    std::unique_ptr<gpu::Device> device;
};

class SharedDevice::Lent : public gpu::DeviceDecorator {
  public:
    explicit Lent(std::shared_ptr<Opened> opened)
        : DeviceDecorator(*opened->device),
          opened_(std::move(opened)) {}
    ~Lent() override { opened_->lost.erase(this); }
    void on_lost(std::function<void(gpu::Loss)> handler) override {
        opened_->lost[this] = std::move(handler);
    }

  private:
    std::shared_ptr<Opened> opened_;
};

Result<std::unique_ptr<gpu::Device>> SharedDevice::lend() {
    std::shared_ptr<Opened> opened = opened_.lock();
    if (!opened || opened->is_lost) {
        auto device = open_();
        if (!device.ok()) return device.error();
        opened = std::make_shared<Opened>();
        opened->number = ++last_number_;
        opened->device = std::move(*device);
        opened->device->on_lost([mine = std::weak_ptr<Opened>(opened)](const gpu::Loss& loss) {
            const std::shared_ptr<Opened> lost = mine.lock();
            if (!lost) return;
            lost->is_lost = true;
            // Each handler is taken out before its call: it may destroy its lent device.
            while (!lost->lost.empty()) lost->lost.extract(lost->lost.begin()).mapped()(loss);
        });
        opened_ = opened;
    }
    return std::unique_ptr<gpu::Device>(std::make_unique<Lent>(std::move(opened)));
}

std::uint64_t SharedDevice::number() const {
    const std::shared_ptr<Opened> opened = opened_.lock();
    return opened ? opened->number : 0;
}

void SharedDevice::share_memory(ByteView memory) {
    // The error is ignored: a device that cannot read this memory gets copies of the blobs instead.
    if (const std::shared_ptr<Opened> opened = opened_.lock())
        (void)opened->device->share_memory(memory);
}
void SharedDevice::unshare_memory(ByteView memory) {
    if (const std::shared_ptr<Opened> opened = opened_.lock())
        opened->device->unshare_memory(memory);
}

bool SharedDevice::answer_read() {
    const std::shared_ptr<Opened> opened = opened_.lock();
    return opened && opened->device->answer_read(false);
}

void SharedDevice::answer_reads(bool here) {
    const std::shared_ptr<Opened> opened = opened_.lock();
    if (opened && opened->answers_here != here)
        opened->device->set_owner_answers(opened->answers_here = here);
}

}  // namespace moex::native
