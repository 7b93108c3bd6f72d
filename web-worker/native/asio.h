// The native worker includes Asio here: timers, signals and the event loop of its one thread.
// Sockets are included by beast.h.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>

namespace moex::native {
namespace asio = boost::asio;
using NetError = boost::system::error_code;
}  // namespace moex::native
