// The C side of the tab's border: what WASM asks of JavaScript
// (web-worker/browser/bridge_library.js forwards each call to host.js).
// Pointers are wasm addresses; sizes and offsets are doubles, since no 64-bit integer
// crosses. Answers come back later through the mx_on_... functions that tab_main.cpp
// and webgpu_device.cpp export; none of them runs inside the call that asked.
// A ticket is a number chosen here that names the asker.
#pragma once

#include <cstdint>

extern "C" {
// ---- GPU; handles are positive, 0 is failure
// -> mx_on_device(ticket, adapter JSON or reason, length, ok)
void mx_create_device(std::uint32_t ticket);
void mx_destroy_device();
int mx_create_buffer(double size_bytes, int usage, const char* label, int label_bytes);
void mx_destroy_buffer(int buffer);
void mx_write_buffer(int buffer, double offset_bytes, const void* data, double size_bytes);
// `kinds`: one byte per binding, gpu::BindingKind.            -> mx_on_pipeline(ticket, handle,
// reason, length)
void mx_create_pipeline(const char* wgsl, int wgsl_bytes, const char* entry, int entry_bytes,
                        const std::uint8_t* kinds, int num_bindings, std::uint32_t ticket);
// `bindings`: three doubles each: buffer, offset, size (0: to the end).
int mx_create_bind_group(int pipeline, const double* bindings, int num_bindings);
void mx_destroy_bind_group(int bind_group);
// `words`: 8 per command: 0, pipeline, bind group, x, y, z, 0, 0
// | 1, source, target, source offset, target offset, size, 0, 0.
void mx_submit(const std::uint32_t* words, int num_commands);
// -> mx_on_read(ticket, data, size, ok); the data is freed afterwards
void mx_read_buffer(int buffer, double size_bytes, std::uint32_t ticket);

// ---- socket                                                  -> mx_on_open(), mx_on_frame(data,
// size), mx_on_closed(code, reason, length)
void mx_connect();
void mx_send(const void* data, double size_bytes);
void mx_close(int code, const char* reason, int reason_bytes);

// ---- blobs: verified, from the cache or the hub              -> mx_on_fetch_progress(ticket,
// bytes, from_network), mx_on_fetched(ticket, data, size, reason, length)
void mx_fetch_blob(const char* hex, double size_bytes, std::uint32_t ticket);
void mx_cancel_fetches();

// ---- time and people
double mx_now_ms();
double mx_random();
void mx_set_timer(double delay_ms, std::uint32_t ticket);  // -> mx_on_timer(ticket)
void mx_clear_timer(std::uint32_t ticket);
void mx_report(const char* json, int json_bytes);
}
