// The GPU's part of the bridge in a tab: the calls from WASM to JavaScript's WebGPU (gpu.js,
// through web-worker/browser/bridge_library.js). The rest of the bridge is
// web-worker/browser/bridge.h, whose rules apply here: sizes and offsets are doubles, and answers
// are delivered later, by ticket.
#pragma once

#include <cstdint>

extern "C" {
// Handles of GPU objects are positive; the value 0 means failure.

// Answered by mx_on_device(ticket, adapter JSON or reason, length, ok).
void mx_create_device(std::uint32_t ticket);
void mx_destroy_device();

int mx_create_buffer(double size_bytes, int usage, const char* label, int label_bytes);
void mx_destroy_buffer(int buffer);
void mx_write_buffer(int buffer, double offset_bytes, const void* data, double size_bytes);

// `kinds`: one byte per binding, gpu::BindingKind. `constants`: "name=value" for each override,
// with blanks between.
// Answered by mx_on_pipeline(ticket, handle, reason, length).
void mx_create_pipeline(const char* wgsl, int wgsl_bytes, const char* entry, int entry_bytes,
                        const std::uint8_t* kinds, int num_bindings, const char* constants,
                        int constants_bytes, std::uint32_t ticket);
// `bindings`: three doubles for each binding: buffer, offset, size (0: to the end of the buffer).
int mx_create_bind_group(int pipeline, const double* bindings, int num_bindings);
void mx_destroy_bind_group(int bind_group);

// `words`: 8 words per command. A dispatch is 0, pipeline, bind group, x, y, z, 0, 0. A copy is 1,
// source, target, source offset, target offset, size, 0, 0.
void mx_submit(const std::uint32_t* words, int num_commands);
// Answered by mx_on_read(ticket, size), with the bytes at the address that mx_read_room(size)
// returned. Size 0: the readback failed.
void mx_read_buffer(int buffer, double size_bytes, std::uint32_t ticket);
void mx_expect_work(double within_ms);  // as gpu::Device::expect_work()
double mx_gpu_us();                     // as gpu::Device::gpu_us()
}
