# HTTP requests: the gate that reads them, and the rules of Host, Origin and key in front of every route.
moex_fuzz(request_gate SOURCES hub/net/request_gate.cpp hub/net/access.cpp hub/net/http.cpp hub/net/rate_limits.cpp
          LIBS ssl crypto pthread)
