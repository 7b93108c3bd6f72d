// Queue of waiting requests, fair between clients: first come, first served within a client, and
// round-robin between clients. So a client that sends many requests delays a request of another
// client by at most one request. Requests that were preempted are served before all others.
//   client a sends a1 a2 a3, then client b sends b1:  order a1 b1 a2 a3
// Not thread-safe: the owner's mutex guards the queue.
#pragma once

#include <deque>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace moex {

template <class Job>
class TurnQueue {
  public:
    using Item = std::unique_ptr<Job>;

    bool empty() const { return returned_.empty() && turns_.empty(); }
    std::size_t size() const { return returned_.size() + num_waiting_; }

    void push(const std::string& client, Item job) {
        std::deque<Item>& own = queues_[client];
        if (own.empty()) turns_.push_back(client);
        own.push_back(std::move(job));
        ++num_waiting_;
    }
    void push_returned(Item job) { returned_.push_front(std::move(job)); }

    // Requires !empty().
    Job& front() { return returned_.empty() ? *queue()->second.front() : *returned_.front(); }

    // Removes and returns the item front(). The client of this item moves to the end of the
    // round-robin order. Requires !empty().
    Item pop() {
        if (!returned_.empty()) {
            Item job = std::move(returned_.front());
            returned_.pop_front();
            return job;
        }
        const auto own = queue();
        Item job = std::move(own->second.front());
        own->second.pop_front();
        --num_waiting_;

        if (own->second.empty()) {
            queues_.erase(own);
            turns_.pop_front();
        } else {
            turns_.splice(turns_.end(), turns_, turns_.begin());
        }
        return job;
    }

    // Removes and returns all items for which `wanted` is true.
    template <class Predicate>
    std::vector<Item> take_if(const Predicate& wanted) {
        std::vector<Item> taken;
        const auto take_from = [&](std::deque<Item>& from) {
            for (Item& job : from)
                if (wanted(*job)) taken.push_back(std::move(job));
            std::erase(from, nullptr);
        };

        take_from(returned_);
        const std::size_t returned = taken.size();
        for (auto own = queues_.begin(); own != queues_.end();) {
            take_from(own->second);
            if (!own->second.empty()) {
                ++own;
                continue;
            }
            turns_.remove(own->first);
            own = queues_.erase(own);
        }
        num_waiting_ -= taken.size() - returned;
        return taken;
    }

  private:
    typename std::map<std::string, std::deque<Item>>::iterator queue() {
        return queues_.find(turns_.front());
    }

    std::deque<Item> returned_;
    std::map<std::string, std::deque<Item>> queues_;  // waiting items by client; no deque is empty
    // clients in round-robin order: every key of queues_, once
    std::list<std::string> turns_;
    std::size_t num_waiting_ = 0;  // in queues_
};

}  // namespace moex
