// The C side of the tab's border: what WASM asks of JavaScript
// (web-worker/browser/bridge_library.js forwards each call to worker.js).
// Pointers are wasm addresses; sizes and offsets are doubles, since no 64-bit integer
// crosses. Answers come back later through the mx_on_... functions that tab_main.cpp
// exports; none of them runs inside the call that asked.
// A ticket is a number chosen here that names the asker.
// The GPU's part is web-worker/gpu/webgpu/webgpu_bridge.h.
#pragma once

#include <cstdint>

extern "C" {
// ---- socket
// -> mx_on_open(), mx_on_frame(data, size), mx_on_closed(code, reason, length)
void mx_connect();
void mx_send(const void* data, double size_bytes);
void mx_close(int code, const char* reason, int reason_bytes);

// ---- blobs: verified, from the cache or the hub
// -> mx_on_fetch_progress(ticket, bytes, from_network),
//    mx_on_fetched(ticket, data, size, reason, length)
void mx_fetch_blob(const char* hex, double size_bytes, int urgent, std::uint32_t ticket);
void mx_cancel_fetches();
void mx_serves_model(const char* model, int model_bytes);  // of the blobs to come

// ---- time and people
double mx_now_ms();
double mx_random();
void mx_set_timer(double delay_ms, std::uint32_t ticket);  // -> mx_on_timer(ticket)
void mx_clear_timer(std::uint32_t ticket);
void mx_report(const char* json, int json_bytes);
}
