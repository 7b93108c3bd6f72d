// Serves as `moex-hub serve` does, with drafts of which a given share is accepted. Models with
// random weights have no draft model, and so they can be measured nevertheless.
//   replay_hub ACCEPTANCE MS serve OPTIONS...
// The hub remembers the tokens of each answer, by prompt, seed and choice. When the same request
// comes again, the draft proposes the remembered tokens, each of them right with the probability
// ACCEPTANCE (0 to 1), by a hash of its position. A drafted token takes MS milliseconds of the
// engine's thread. So a request must be sent twice, and the second answer is the measured one.
//   example: replay_hub 0.8 0 serve --model static/models/demo --speculative auto
#include <charconv>
#include <cstdio>
#include <map>
#include <string_view>
#include <thread>

#include "hub/commands/command_line.h"
#include "hub/commands/serve/hub_program.h"
#include "hub/engine/draw_noise.h"

namespace moex {
namespace {

using Answer = std::vector<TokenId>;  // the prompt's tokens, and those of the answer

class ReplayedDraft : public Draft {
  public:
    ReplayedDraft(std::uint64_t seed, Answer& answer) : seed(seed), answer(answer) {}
    const std::uint64_t seed;
    Answer& answer;
};

class ReplayedDrafts : public DraftSource {
  public:
    ReplayedDrafts(double acceptance, double token_ms)
        : wrong_below_((1 - acceptance) * 4294967296.0),
          token_ms_(token_ms) {}

    const char* name() const override { return "replayed"; }
    bool costs_time() const override { return token_ms_ > 0; }
    std::unique_ptr<Draft> begin(const GenerationRequest& request) override {
        Answer key = request.prompt;
        const std::uint64_t seed = request.sampling.seed;
        for (const std::uint64_t part : {seed, std::uint64_t{request.sampling.choice}})
            key.push_back(static_cast<TokenId>(part));
        return std::make_unique<ReplayedDraft>(seed, answers_[std::move(key)]);
    }
    void propose(std::span<DraftCall> calls) override {
        std::size_t num_tokens = 0;
        for (DraftCall& call : calls) {
            propose_one(call);
            num_tokens += call.proposed.size();
        }
        std::this_thread::sleep_for(
            std::chrono::duration<double, std::milli>(token_ms_ * static_cast<double>(num_tokens)));
    }

  private:
    void propose_one(DraftCall& call) const {
        Answer& answer = static_cast<ReplayedDraft&>(*call.draft).answer;
        const std::uint64_t seed = static_cast<ReplayedDraft&>(*call.draft).seed;
        call.proposed.clear();
        const std::size_t now = call.tokens.size();
        if (answer.size() < now) answer.assign(call.tokens.begin(), call.tokens.end());
        for (std::size_t at = now; at < answer.size() && at < now + call.tokens_max; ++at) {
            const DrawNoise noise({.seed = seed, .position = static_cast<std::uint32_t>(at)});
            const bool is_wrong = static_cast<double>(noise.high(0)) < wrong_below_;
            call.proposed.push_back(is_wrong ? answer[at] ^ 1 : answer[at]);
        }
    }

    const double wrong_below_;
    const double token_ms_;
    std::map<Answer, Answer> answers_;
};

int run(int argc, char** argv) {
    double values[2] = {-1, -1};
    for (int i = 0; i < 2 && i + 1 < argc; ++i) {
        const std::string_view given = argv[i + 1];
        (void)std::from_chars(given.data(), given.data() + given.size(), values[i]);
    }
    if (argc < 4 || values[0] < 0 || values[0] > 1 || values[1] < 0)
        return fail("wanted: replay_hub ACCEPTANCE MS serve OPTIONS..., 0 <= ACCEPTANCE <= 1");
    auto parsed = parse_command_line(
        {argv + 3, argv + argc}, [](const std::string&) { return std::optional<std::string>(); });
    if (const auto* stop = std::get_if<ParsedExit>(&parsed)) return fail(stop->text);
    const Invocation& invocation = std::get<ParsedCommand>(parsed).invocation;
    const auto settings = read_serve_settings(invocation.settings);
    if (!settings.ok()) return fail(settings.error().message);

    ReplayedDrafts drafts(values[0], values[1]);
    HubProgram hub(invocation, *settings);
    hub.use_drafts_of(drafts);
    const Status opened = hub.open();
    if (!opened.ok()) return fail(opened.error().message);
    const Status ended = hub.run();
    return ended.ok() ? exit_stopped : fail(ended.error().message);
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    try {
        return moex::run(argc, argv);
    } catch (const std::exception& error) {
        return moex::fail(error.what());
    }
}
