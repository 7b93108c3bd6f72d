// LifeGuard lets a late callback check whether the object that it would call still exists. The
// object owns a LifeGuard as its last member, which is therefore destroyed first. The callback
// keeps a Watch. alive() is called on the object's thread. If it returns true, the object stays
// alive until the callback returns or destroys it.
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
