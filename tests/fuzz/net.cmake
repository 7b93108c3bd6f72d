# HTTP requests: the gate that reads them, and the rules of Host, Origin and key in front of every route.
moex_fuzz_batches(gate_sources request_gate hub/net/http/request_gate.cpp hub/net/http/fields.cpp
    hub/net/http/handshake.cpp hub/net/http/request_id.cpp hub/net/access/access.cpp hub/api/http.cpp
    hub/net/access/rate_limits.cpp)
moex_fuzz(request_gate SOURCES ${gate_sources} LIBS ssl crypto pthread)
