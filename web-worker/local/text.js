// Gives the tokenizer in WASM the browser's own Unicode data and regular expressions (text_bridge.h). Texts are passed
// in both directions as UTF-8.
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const encoder = new TextEncoder();

// Unicode's categories in the order of the enumeration UnicodeCategory in hub/model/tokenizer/unicode.h.
const categories = ["Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
  "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"];
const of_category = new RegExp(categories.map((name) => `(\\p{${name}})`).join("|"), "u");

// JavaScript has no title case. Title case equals upper case, except for digraph letters, which have triples of upper,
// title and lower case, and for Georgian, whose words have no capital.
const threes = [[0x1c4, 0x1cc], [0x1f1, 0x1f3]];
function titleOf(code_point) {
  for (const [first, last] of threes)
    if (code_point >= first && code_point <= last) return code_point - (code_point - first) % 3 + 1;
  const georgian = (code_point >= 0x10d0 && code_point <= 0x10fa) || (code_point >= 0x10fd && code_point <= 0x10ff);
  return georgian ? code_point : null;
}

export class BrowserText {
  constructor() {
    this.patterns = [null];
    this.categories = new Map();
  }

  // Compiles a regular expression. Returns {pattern}, its handle, or {reason} if the source is invalid.
  compile(source) {
    try {
      this.patterns.push(new RegExp(decoder.decode(source), "gu"));
      return { pattern: this.patterns.length - 1 };
    } catch (error) {
      return { reason: encoder.encode(error.message) };
    }
  }

  free(pattern) {
    this.patterns[pattern] = null;
  }

  // Returns the byte offsets of the begin and the end of each non-empty match.
  find(pattern, bytes) {
    const text = decoder.decode(bytes);
    const bounds = [];
    let unit = 0;
    let byte = 0;
    const byteAt = (index) => {
      for (; unit < index; unit += 1) {
        const code = text.charCodeAt(unit);
        const leads = code >= 0xd800 && code < 0xdc00;
        if (leads) unit += 1;
        byte += leads ? 4 : code < 0x80 ? 1 : code < 0x800 ? 2 : 3;
      }
      return byte;
    };

    for (const match of text.matchAll(this.patterns[pattern])) {
      const end = match.index + match[0].length;
      if (end > match.index) bounds.push(byteAt(match.index), byteAt(end));
    }
    return Uint32Array.from(bounds);
  }

  // `form` is a NormalForm of hub/model/tokenizer/unicode.h.
  normalForm(bytes, form) {
    return encoder.encode(decoder.decode(bytes).normalize(["NFC", "NFD", "NFKC", "NFKD"][form]));
  }

  category(code_point) {
    const known = this.categories.get(code_point);
    if (known !== undefined) return known;
    const match = of_category.exec(String.fromCodePoint(code_point));
    const found = match === null ? 0 : match.indexOf(match[0], 1) - 1;
    this.categories.set(code_point, found);
    return found;
  }

  // Returns the code point of the character in another case; `to`: 0 upper, 1 lower, 2 title. A character that would
  // become several characters is unchanged.
  changeCase(code_point, to) {
    const title = to === 2 ? titleOf(code_point) : null;
    if (title !== null) return title;
    const letter = String.fromCodePoint(code_point);
    const mapped = to === 1 ? letter.toLowerCase() : letter.toUpperCase();
    const first = mapped.codePointAt(0);
    return String.fromCodePoint(first) === mapped ? first : code_point;
  }
}
