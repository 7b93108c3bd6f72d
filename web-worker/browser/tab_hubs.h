// Learns whether a balancer serves the origin of a tab's page, so that a tab without one does not
// leave its hub for nothing.
//
// A tab reaches another hub of its fleet only where a balancer at the page's own origin reads
// /worker?hub=ID; the addresses of HUBS are for native workers. The tab is not told whether there
// is one. It follows a first move, and the id in the next WELCOME is the answer. A hub with another
// id than before, at any connection, shows a balancer too.
// Limit: the hub that a move names may be gone. The tab then follows no move until a balancer has
// led it to another hub.
#pragma once

#include <string>
#include <string_view>

namespace moex {

class TabHubs {
  public:
    // Takes the id of the hub that WELCOME or HUBS has named.
    void arrived(std::string_view id) {
        if (!current_.empty() && id != current_)
            may_move_ = true;
        else if (!wanted_.empty() && id != wanted_)
            may_move_ = false;
        current_ = id;
        wanted_.clear();
    }
    // Notes that the next connection asks for the hub `id`. Returns false, and notes nothing, if
    // this origin is known to have no balancer.
    bool move_to(std::string_view id) {
        if (may_move_) wanted_ = id;
        return may_move_;
    }

  private:
    std::string current_, wanted_;  // ids; empty: none yet
    bool may_move_ = true;
};

}  // namespace moex
