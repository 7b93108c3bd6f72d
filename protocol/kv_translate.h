// Translates pages of keys and values (kv_page.h) between sizes of pages and between forms of rows,
// so that a page that a hub's cores computed (16 tokens, f32 or f16) can be taken by a GPU (128
// tokens, f32, f16 or u8), and back. The functions are pure.
//   8 pages of 16 tokens -> 1 page of 128 tokens -> 8 pages of 16 tokens, with the same bytes
// The bounds of the error of one value x, in a head with values from low to high:
//   f16, u8 or int8 -> f32     0
//   f32 -> f16                 |x| * 2^-11, or 2^-25 if that is more; beyond 65519 it is refused
//   f32 or f16 -> u8           kv_code_error(low, high), about 1/510 of the range
// The source of a translated page has the new page size and row type, so a reader that wants rows
// as another arithmetic computed them still refuses them by the names of the fields.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "protocol/kv_page.h"

namespace moex {

// A page that owns its rows and its recurrent state. It can be moved, not copied.
struct OwnedKvPage {
    OwnedKvPage() = default;
    OwnedKvPage(OwnedKvPage&&) = default;
    OwnedKvPage& operator=(OwnedKvPage&&) = default;

    KvPage page;  // its `rows` and `state` are views of the two members below
    Bytes rows, state;
};

// Returns the SHA-256 of the first `num_tokens` tokens of a text, each as u32.
using HashOfText = std::function<Sha256(std::uint32_t num_tokens)>;

// Returns the pages of a text with `page_tokens` tokens each; the last one may have fewer. `pages`
// follow each other, all full except the last, and the first one begins at a multiple of
// `page_tokens`. `hash_of` knows the text, for pages that begin inside one of `pages`.
// Errors: bad_order (pages that do not follow each other), bad_field (a source that differs, by the
// field's name; a first position or a text that does not fit), unsupported (a page with recurrent
// state that would be divided: the state is known at its end only; too many workers in one page).
Result<std::vector<OwnedKvPage>> resize_kv_pages(std::span<const KvPage> pages,
                                                 std::uint32_t page_tokens,
                                                 const HashOfText& hash_of);

// Returns the page with rows of another form, f32, f16 or u8.
// Errors: unsupported (to int8 rows), non_finite (a value that the new form does not have).
Result<OwnedKvPage> convert_kv_rows(const KvPage& page, KvRowType row_type);

// Returns the most by which a value of a head with values from `low` to `high` can differ after it
// was stored as a code.
double kv_code_error(double low, double high);

}  // namespace moex
