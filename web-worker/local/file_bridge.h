// The functions that the model in a tab calls in JavaScript for its files, which are found by hash
// and already open (web-worker/browser/file_store.js, through bridge_library.js).
#pragma once

extern "C" {
// Returns the size in bytes of the open file with the hash `hex`; negative if no open file has it.
double mx_file_size(const char* hex);
// Reads from an open file synchronously and returns the number of bytes read.
double mx_file_read(const char* hex, double offset_bytes, double size_bytes, void* to);
void mx_report(const char* json, int json_bytes);
}
