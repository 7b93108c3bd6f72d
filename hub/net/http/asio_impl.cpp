// Compiles the code of Asio and Beast once for the whole program.
#include "hub/net/http/asio.h"

#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>
