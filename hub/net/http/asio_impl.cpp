// Asio's and Beast's own code, compiled once for the whole program.
#include "hub/net/http/asio.h"

#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>
