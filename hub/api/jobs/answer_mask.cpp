#include "hub/api/jobs/answer_mask.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <string_view>
#include <thread>

#include "protocol/thread_name.h"

namespace moex {

struct MaskMaker::State {
    std::mutex mutex;  // guards the following members
    std::condition_variable wake;
    std::deque<std::function<void()>> jobs;
    bool stopping = false;
    // The most recently built rules by their keys, the newest first.
    std::deque<std::pair<std::string, std::shared_ptr<const AnswerRules>>> rules;
    std::thread thread;

    void run() {
        name_thread("mask");
        std::unique_lock lock(mutex);
        for (;;) {
            wake.wait(lock, [&] { return stopping || !jobs.empty(); });
            if (stopping) return;
            const auto job = std::move(jobs.front());
            jobs.pop_front();
            lock.unlock();
            job();
            lock.lock();
        }
    }
};

MaskMaker::MaskMaker(Vocabulary vocabulary)
    : vocabulary_(std::move(vocabulary)),
      state_(std::make_shared<State>()) {
    state_->thread = std::thread([state = state_] { state->run(); });
}

MaskMaker::~MaskMaker() {
    {
        const std::lock_guard lock(state_->mutex);
        state_->stopping = true;
    }
    state_->wake.notify_all();
    // A job on the mask maker's own thread may release the last reference to this object. A thread
    // cannot join itself, so it is detached.
    if (state_->thread.get_id() == std::this_thread::get_id())
        state_->thread.detach();
    else
        state_->thread.join();
}

Result<std::shared_ptr<const AnswerRules>> MaskMaker::rules(const std::string& key,
                                                            const Build& build) {
    constexpr std::size_t kept_max = 32, key_bytes_max = 256 << 10;
    {
        const std::lock_guard lock(state_->mutex);
        for (auto& [known, rules] : state_->rules)
            if (known == key) return rules;
    }
    auto built = build();
    if (!built.ok() || key.size() > key_bytes_max) return built;
    const std::lock_guard lock(state_->mutex);
    state_->rules.emplace_front(key, *built);
    if (state_->rules.size() > kept_max) state_->rules.pop_back();
    return built;
}

void MaskMaker::post(std::function<void()> job) {
    {
        const std::lock_guard lock(state_->mutex);
        state_->jobs.push_back(std::move(job));
    }
    state_->wake.notify_one();
}

AnswerMask::AnswerMask(std::shared_ptr<MaskMaker> maker, GrammarState begin)
    : maker_(std::move(maker)),
      state_(std::move(begin)),
      bits_(maker_->vocabulary().num_words(), 0) {}

void AnswerMask::follow(TokenId id) {
    if (!is_lost_ && !take_token(state_, maker_->vocabulary(), id)) is_lost_ = true;
    ++taken_;
}

void AnswerMask::fill(std::uint32_t tokens_left) {
    const Vocabulary& vocabulary = maker_->vocabulary();
    bits_behind_ = taken_;
    bits_left_ = tokens_left;
    const auto is_empty = [&] {
        return std::all_of(bits_.begin(), bits_.end(),
                           [](std::uint64_t word) { return word == 0; });
    };

    std::fill(bits_.begin(), bits_.end(), 0);
    if (!is_lost_) {
        const MaskResult made = fill_mask(state_, tokens_left, vocabulary, maker_->cache(), bits_);
        cut_short_ = cut_short_ || made.by_budget;
        // Ignore the token budget if the shortest end of the answer needs more tokens. The answer
        // is then cut off, as an answer without a grammar is.
        if (is_empty()) fill_mask(state_, endless, vocabulary, maker_->cache(), bits_);
    }
    if (is_empty())
        for (const TokenId id : vocabulary.end_ids()) set_bit(bits_, id);
}

std::span<const std::uint64_t> AnswerMask::allowed(std::span<const TokenId> answer,
                                                   std::uint32_t tokens_left) {
    const std::lock_guard lock(mutex_);
    while (taken_ < answer.size()) follow(answer[taken_]);
    if (bits_left_ != tokens_left || bits_behind_ != taken_) fill(tokens_left);
    return bits_;
}

namespace {

// Cuts a text into the longest tokens, at most `tokens_max`, as a tokenizer mostly does.
std::vector<TokenId> cut_text(std::string_view text, const TokenTrie& trie,
                              std::size_t tokens_max) {
    std::vector<TokenId> ids;
    while (!text.empty() && ids.size() < tokens_max) {
        std::size_t longest = 0;
        TokenId id = 0;
        std::uint32_t node = 0;
        for (std::size_t depth = 0; depth < text.size(); ++depth) {
            std::uint32_t child = node + 1;
            const auto byte = static_cast<unsigned char>(text[depth]);
            while (child < trie.nodes[node].end && trie.nodes[child].byte != byte)
                child = trie.nodes[child].end;
            if (child >= trie.nodes[node].end) break;
            node = child;
            if (trie.tokens_of(node).empty()) continue;
            longest = depth + 1;
            id = trie.tokens_of(node).front();
        }
        if (longest == 0) break;
        ids.push_back(id);
        text.remove_prefix(longest);
    }
    return ids;
}

}  // namespace

std::vector<TokenId> AnswerMask::forced(std::span<const TokenId> answer, std::size_t tokens_max) {
    constexpr std::size_t bytes_a_token = 8;  // longer tokens are rare
    const std::lock_guard lock(mutex_);
    while (taken_ < answer.size()) follow(answer[taken_]);
    if (is_lost_) return {};
    const std::string text = state_.forced(bytes_a_token * tokens_max);
    return cut_text(text, maker_->vocabulary().trie(), tokens_max);
}

void AnswerMask::expect(std::size_t index, TokenId id) {
    last_id_ = id;
    last_index_ = index;
    has_last_ = true;
    maker_->post([weak = weak_from_this(), index, id] {
        const auto self = weak.lock();
        if (!self) return;
        const std::lock_guard lock(self->mutex_);
        // Continue only if `id` was drawn by the present mask: the engine may already have
        // requested a later mask, or the answer may have ended.
        if (self->taken_ != index || self->bits_behind_ != index || self->bits_left_ < 2) return;
        const std::uint32_t left = self->bits_left_ - 1;
        self->follow(id);
        self->fill(left);
    });
}

bool AnswerMask::cut_short() const {
    const std::lock_guard lock(mutex_);
    return cut_short_;
}

bool AnswerMask::is_complete() const {
    const std::lock_guard lock(mutex_);
    if (is_lost_ || !has_last_) return false;
    if (taken_ > last_index_) return state_.may_end();
    if (taken_ < last_index_) return false;
    const Vocabulary& vocabulary = maker_->vocabulary();
    if (vocabulary.is_end(last_id_)) return state_.may_end();
    GrammarState after = state_;
    return take_token(after, vocabulary, last_id_) && after.may_end();
}

std::uint32_t AnswerMask::least() const {
    const std::lock_guard lock(mutex_);
    return state_.least();
}

}  // namespace moex
