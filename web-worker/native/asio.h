// The native worker's door to Asio: time, signals and the one thread that everything runs on.
// Sockets come through beast.h.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

namespace moex::native {
namespace asio = boost::asio;
using NetError = boost::system::error_code;
}  // namespace moex::native
