// The functions by which the model in a tab keeps pages of keys and values in the browser's files
// (web-worker/browser/page_files.js, through bridge_library.js). Tokens are valid during the call.
#pragma once

#include <cstdint>

extern "C" {
// Asks for the pages of a text, from the page `first_page` on; of a model with recurrent states,
// for those before the newest state after more than `state_after` tokens (-1: another model), and
// for that state. JavaScript answers with mx_on_page(bytes, size) for each page, then for the
// state, then with mx_on_pages_end().
void mx_find_pages(const std::uint32_t* tokens, std::uint32_t num_tokens, std::uint32_t first_page,
                   int state_after);
// Tells that the GPU holds a text. JavaScript asks by mx_read_page() for each page that it lacks,
// and for the states after `states` tokens each.
void mx_keep_pages(std::uint32_t turn, const std::uint32_t* tokens, std::uint32_t num_tokens,
                   const std::uint32_t* states, std::uint32_t num_states);
// Gives the page that mx_read_page() asked for; `size_bytes` 0: it is not on the GPU any more.
void mx_page_read(const void* page, int size_bytes);

// Store a page that leaves the GPU's memory, `size_bytes` of `num_layers` layers, and read one
// layer of such pages, `size_bytes` each (web-worker/browser/evicted_pages.js). JavaScript answers
// with mx_on_evicted(bytes, size): one byte for a page that was stored; size 0: it failed.
void mx_write_evicted(std::uint32_t page, const void* layers, std::uint32_t size_bytes,
                      std::uint32_t num_layers);
void mx_read_evicted(std::uint32_t layer, const std::uint32_t* pages, std::uint32_t num_pages,
                     std::uint32_t size_bytes);
}
