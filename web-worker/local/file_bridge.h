// What the model in a tab asks of JavaScript besides a GPU and text: its files, by hash, which are
// open already (web-worker/browser/file_store.js, through bridge_library.js).
#pragma once

extern "C" {
// Of an open file; negative: there is none of that hash.
double mx_file_size(const char* hex);
// Reads at once; the number of bytes that were read.
double mx_file_read(const char* hex, double offset_bytes, double size_bytes, void* to);
void mx_report(const char* json, int json_bytes);
}
