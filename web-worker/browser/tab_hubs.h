// Chooses the hubs of a tab, and learns whether a balancer serves the origin of its page, so that a
// tab without one does not leave its hub for nothing.
//
// A tab reaches another hub of its fleet only where a balancer at the page's own origin reads
// /worker?hub=ID; the addresses of HUBS are for native workers. The tab is not told whether there
// is one. It follows a first move, and the id in the next WELCOME is the answer. A hub with another
// id than before, at any connection, shows a balancer too.
//
// A tab measures no round trips, so that need and load alone decide (hub_choice.h). The way to the
// balancer is the same for all hubs behind it, and what differs is the way from there to each hub:
// mostly less than the 5 ms from which a nearer hub counts. The only request that reaches a chosen
// hub is /worker?hub=ID; without an upgrade it is refused, and a browser shows that as an error of
// the page. Hubs that are far from each other get a balancer, and an origin, in each place.
// Limit: the hub that a move names may be gone. The tab then follows no move until a balancer has
// led it to another hub.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "web-worker/session/hub_choice.h"

namespace moex {

class TabHubs {
  public:
    // Takes the hub that WELCOME or HUBS has named, and the others.
    void arrived(const HubPlace& here, const std::vector<HubPlace>& others = {}) {
        if (!current_.id.empty() && here.id != current_.id)
            may_move_ = true;
        else if (!wanted_.empty() && here.id != wanted_)
            may_move_ = false;
        current_ = here;
        others_ = others;
        wanted_.clear();
    }
    // Notes that the next connection asks for the hub `id`. Returns false, and notes nothing, if
    // this origin is known to have no balancer.
    bool move_to(std::string_view id) {
        if (may_move_) wanted_ = id;
        return may_move_;
    }
    // Returns the best other hub, if it is clearly better than the present one.
    std::optional<HubPlace> better(const std::function<double()>& random) const {
        const auto best = best_other(random);
        if (!best || !is_clearly_better({best->need, {}}, {current_.need, {}})) return std::nullopt;
        return best;
    }
    // Returns the hub to ask for once the present one has said that it stops; nullopt: the same.
    std::optional<HubPlace> after_stop(const std::function<double()>& random) const {
        return wanted_.empty() && may_move_ ? best_other(random) : std::nullopt;
    }

  private:
    std::optional<HubPlace> best_other(const std::function<double()>& random) const {
        std::vector<HubOption> options;
        for (const HubPlace& hub : others_) options.push_back({hub.need, {}});
        if (options.empty()) return std::nullopt;
        return others_[rank_hubs(options, random).front()];
    }

    HubPlace current_;
    std::vector<HubPlace> others_;
    std::string wanted_;  // id; empty: none
    bool may_move_ = true;
};

}  // namespace moex
