// The C side of the tab's border: the calls that WASM makes into JavaScript (bridge_library.js in
// this folder forwards each call to worker.js). Pointers are wasm addresses. Sizes and offsets are
// doubles, since no 64-bit integer crosses the border. Answers arrive later through the mx_on_...
// functions that tab_main.cpp exports; none of these functions runs inside the call that requested
// the answer. A ticket is a number that the C side chooses to identify a request. The GPU's part of
// the border is web-worker/gpu/webgpu/webgpu_bridge.h.
#pragma once

#include <cstdint>

extern "C" {
// ---- socket; JavaScript reports its events by
// mx_on_open(), mx_on_frame(data, size), mx_on_closed(code, reason, length),
// mx_on_other_hub(reason, length)
void mx_connect();
// Names the hub of the fleet, by its eight digits, to which the next connections go: a balancer of
// this origin sends them there as long as that hub lives.
void mx_next_hub(const char* hub_id);
void mx_send(const void* data, double size_bytes);
void mx_close(int code, const char* reason, int reason_bytes);

// ---- verified blobs, from the cache or the hub; JavaScript answers a fetch with
// mx_on_fetch_progress(ticket, bytes, from_network) and
// mx_on_fetched(ticket, data, size, reason, length)
void mx_fetch_blob(const char* hex, double size_bytes, int urgent, std::uint32_t ticket);
// Lets mx_fetch_blob() take the blob of a layer if the hub signed it. `signature`: 128 hexadecimal
// digits. JavaScript answers with mx_on_accepted(ticket, accepted).
void mx_accept_layer(const char* hex, const char* signature, std::uint32_t ticket);
void mx_cancel_fetches();
// Sets the model of all blobs that are fetched from now on.
void mx_serves_model(const char* model, int model_bytes);

// ---- The following functions return time and report status.
double mx_now_ms();
double mx_random();
void mx_set_timer(double delay_ms, std::uint32_t ticket);  // -> mx_on_timer(ticket)
void mx_clear_timer(std::uint32_t ticket);
void mx_report(const char* json, int json_bytes);
}
