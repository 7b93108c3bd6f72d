// Tells a callback that comes late whether the object that it would call is still there.
// The object owns a LifeGuard, declared last so that it goes first; the callback keeps a Watch.
// Asked on the object's thread: what is alive then is alive until the callback returns or ends it.
#pragma once

#include <memory>

namespace moex {

class LifeGuard {
  public:
    class Watch {
      public:
        bool alive() const { return !life_.expired(); }

      private:
        friend LifeGuard;
        explicit Watch(std::weak_ptr<const char> life) : life_(std::move(life)) {}
        std::weak_ptr<const char> life_;
    };

    LifeGuard() = default;
    LifeGuard(const LifeGuard&) = delete;
    LifeGuard& operator=(const LifeGuard&) = delete;
    Watch watch() const { return Watch(life_); }

  private:
    std::shared_ptr<const char> life_ = std::make_shared<const char>();
};

}  // namespace moex
