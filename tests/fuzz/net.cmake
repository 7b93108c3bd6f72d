# HTTP requests: the gate that reads them, and the rules of Host, Origin and key in front of every route.
moex_fuzz(request_gate SOURCES hub/net/http/request_gate.cpp hub/net/http/fields.cpp hub/net/http/handshake.cpp
          hub/net/http/request_id.cpp hub/net/access.cpp hub/api/http.cpp hub/net/rate_limits.cpp
          LIBS ssl crypto pthread)
