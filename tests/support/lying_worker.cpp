// A worker that computes its experts on the CPU, from the package on this disk, and returns wrong
// rows for some calls. The tests of the hub's checks run it.
//   lying_worker HUB_URL MODEL_DIR LIE [--share P] [--honest-first N] [--key KEY] [--seed N]
//                [--count N] [--back-within S]
// LIE: none or one of plausible_lie_names. The join token comes from MOEX_TOKEN. Prints "serving"
// when it is ready, "answered N", then "closed CODE REASON" when the hub ends the connection; ends
// with SIGTERM.
// --count: runs N workers with the keys KEY-1, KEY-2 and so on, and prints "welcomed N" whenever
// all of them are welcomed. --back-within: a worker whose connection ends reconnects after a random
// delay of 0.5 to S seconds, as a tab does (web-worker/session/hub_connection.cpp), and "closed" is
// not printed.
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <map>
#include <set>

#include "hub/engine/local_experts.h"
#include "protocol/half.h"
#include "protocol/messages.h"
#include "tests/support/lies.h"
#include "web-worker/native/asio.h"
#include "web-worker/native/websocket_client.h"

namespace {

using namespace moex;

struct Options {
    std::string hub, model, key = "lying-worker";
    Lie lie = Lie::none;
    double share = 1, back_within_s = 0;
    std::uint64_t honest_first = 0, seed = 1, count = 1;
};

// State that all workers of this process share.
struct Crowd {
    native::asio::io_context& io;
    const Options& options;
    const native::HubUrl& url;
    const std::string token;
    const LocalExperts& experts;
    std::uint64_t num_welcomed = 0;
};

class LyingWorker {
  public:
    LyingWorker(Crowd& crowd, std::uint64_t number)
        : crowd_(crowd),
          options_(crowd.options),
          key_(options_.count > 1 ? text(options_.key, '-', number) : options_.key),
          experts_(crowd.experts),
          random_(options_.seed + number - 1),
          back_at_(crowd.io) {
        connect();
    }

  private:
    void connect() {
        socket_ = native::make_websocket(crowd_.io, {.url = crowd_.url}, crowd_.token);
        socket_->on_open = [this] { say_hello(); };
        socket_->on_frame = [this](ByteView frame) { on_frame(frame); };
        socket_->on_text = [] {};
        socket_->on_closed = [this](std::uint16_t code, const std::string& reason) {
            on_closed(code, reason);
        };
        socket_->open();
    }

    void on_closed(std::uint16_t code, const std::string& reason) {
        if (std::exchange(welcomed_, false)) --crowd_.num_welcomed;
        if (options_.back_within_s <= 0) {
            std::cout << "answered " << num_answers_ << "\nclosed " << code << ' ' << reason
                      << std::endl;
            crowd_.io.stop();
            return;
        }

        const double wait_ms = 500 + uniform() * (1000 * options_.back_within_s - 500);
        back_at_.expires_after(std::chrono::microseconds(static_cast<long>(1000 * wait_ms)));
        back_at_.async_wait([this](native::NetError error) {
            if (!error) connect();
        });
    }

    void on_welcome(ByteView frame) {
        const auto welcome = decode_welcome(frame);
        if (!welcome.ok() || std::exchange(welcomed_, true)) return;
        limits_ = welcome->limits;
        if (++crowd_.num_welcomed == options_.count && options_.count > 1)
            std::cout << "welcomed " << options_.count << std::endl;
    }

    double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

    void say_hello() {
        Hello hello;
        hello.token = crowd_.token;
        hello.device = {.backend = "cpu",
                        .vendor = "test",
                        .architecture = "cpu",
                        .description = "lying worker",
                        .budget_bytes = 8ull << 30};
        hello.client = "lying 0.1.0";
        hello.caps.insert(hello.caps.end(), {clamped_cap, mxfp4_cap});
        hello.worker_key = key_;
        socket_->send(encode_hello(hello));
    }

    void on_frame(ByteView frame) {
        const auto header = decode_frame_header(frame);
        if (!header.ok()) return;
        switch (header->type) {
            case FrameType::welcome: on_welcome(frame); break;
            case FrameType::heartbeat: socket_->send(encode_heartbeat(header->sequence_id)); break;
            case FrameType::assign: on_assign(frame); break;
            case FrameType::group_dispatch: on_group(frame); break;
            default: break;  // CANCEL arrives too late to stop a call; other frames need no action
        }
    }

    void on_assign(ByteView frame) {
        const auto assigned = decode_assign(frame, limits_);
        if (!assigned.ok()) return;
        std::vector<Unit> units;
        for (const AssignedUnit& unit : assigned->units) units.push_back({unit.layer, unit.expert});
        socket_->send(encode_ready(units));
        if (!std::exchange(serving_, true)) std::cout << "serving" << std::endl;
    }

    Lie next_lie() {
        if (num_answers_++ < options_.honest_first || options_.lie == Lie::none) return Lie::none;
        return uniform() < options_.share ? options_.lie : Lie::none;
    }

    void on_group(ByteView frame) {
        const auto call = decode_group_dispatch(frame, limits_);
        if (!call.ok()) return;
        const std::size_t hidden = limits_.hidden_size;
        const GroupShape& shape = call->shape;
        const Lie lie = next_lie();

        GroupResult result{.sequence_id = call->sequence_id, .shape = shape};
        result.y.assign((shape.unsummed ? shape.num_pairs : shape.num_tokens) * hidden, 0);

        std::vector<float> x, y, gates;
        std::size_t pair = 0;
        for (const GroupExpert& expert : call->experts) {
            x.resize(expert.num_rows * hidden);
            y.resize(expert.num_rows * hidden);
            gates.resize(expert.num_rows);
            for (std::size_t i = 0; i < expert.num_rows; ++i) {
                std::copy_n(call->x.data() + call->rows[pair + i] * hidden, hidden,
                            x.data() + i * hidden);
                gates[i] = half_to_float(call->gates[pair + i]);
            }
            const std::uint32_t asked = lie == Lie::other_expert
                                            ? (expert.expert + 1) % limits_.num_experts
                                            : expert.expert;
            if (!experts_.compute(shape.layer, asked, x, gates, y)) return;
            for (std::size_t i = 0; i < expert.num_rows; ++i, ++pair) {
                float* out = result.y.data() + (shape.unsummed ? pair : call->rows[pair]) * hidden;
                for (std::size_t c = 0; c < hidden; ++c) out[c] += y[i * hidden + c];
            }
        }

        tell_lie(lie, std::span(result.y), previous_, random_);
        socket_->send(encode_group_result(result, false));
    }

    Crowd& crowd_;
    const Options& options_;
    const std::string key_;
    const LocalExperts& experts_;
    std::mt19937_64 random_;
    native::asio::steady_timer back_at_;
    WireLimits limits_;
    std::uint64_t num_answers_ = 0;
    std::vector<float> previous_;
    bool serving_ = false, welcomed_ = false;
    std::shared_ptr<native::WebSocketClient> socket_;
};

std::optional<Options> parse(int argc, char** argv) {
    if (argc < 4 || argc % 2 != 0) return std::nullopt;
    Options options{.hub = argv[1], .model = argv[2]};
    const std::string_view lie = argv[3];
    bool known = lie == "none";
    for (std::size_t i = 0; i < plausible_lies.size(); ++i)
        if (lie == plausible_lie_names[i]) {
            options.lie = plausible_lies[i];
            known = true;
        }
    for (int i = 4; i + 1 < argc; i += 2) {
        const std::string_view name = argv[i];
        if (name == "--share")
            options.share = std::atof(argv[i + 1]);
        else if (name == "--honest-first")
            options.honest_first = std::strtoull(argv[i + 1], nullptr, 10);
        else if (name == "--key")
            options.key = argv[i + 1];
        else if (name == "--seed")
            options.seed = std::strtoull(argv[i + 1], nullptr, 10);
        else if (name == "--count")
            options.count = std::max(1ull, std::strtoull(argv[i + 1], nullptr, 10));
        else if (name == "--back-within")
            options.back_within_s = std::atof(argv[i + 1]);
        else
            known = false;
    }
    if (!known) return std::nullopt;
    return options;
}

}  // namespace

int main(int argc, char** argv) {
    const auto options = parse(argc, argv);
    if (!options) {
        std::cerr << "usage: lying_worker HUB_URL MODEL_DIR LIE [--share P] [--honest-first N] "
                     "[--key KEY] [--seed N] [--count N] [--back-within S]\n";
        return 2;
    }
    const auto url = native::parse_hub_url(options->hub);
    auto package = ModelPackage::open(options->model);
    if (!url.ok() || !package.ok()) {
        std::cerr << (url.ok() ? package.error().message : url.error().message) << '\n';
        return 1;
    }

    const char* token = std::getenv("MOEX_TOKEN");
    native::asio::io_context io;
    native::asio::signal_set signals(io, SIGTERM, SIGINT);
    signals.async_wait([&](native::NetError, int) { io.stop(); });
    ThreadPool threads(1);
    const LocalExperts experts(*std::move(package), threads, {});
    Crowd crowd{io, *options, *url, token ? token : url->token, experts};
    std::vector<std::unique_ptr<LyingWorker>> workers;
    for (std::uint64_t number = 1; number <= options->count; ++number)
        workers.push_back(std::make_unique<LyingWorker>(crowd, number));
    io.run();
}
