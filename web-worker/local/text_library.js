// Emscripten library: forwards each C call of text_bridge.h to the object that was passed as Module.text (text.js).
// Addresses above 2 GiB arrive as negative numbers, hence >>> 0.
var MoexText = {
  $moexTextAnswer: function(bytes) {
    var room = Module['_mx_text_room'](bytes.length) >>> 0;
    HEAPU8.set(bytes, room);
    return bytes.length;
  },
  mx_pattern_compile__deps: ['$moexTextAnswer'],
  mx_pattern_compile: function(source, bytes) {
    source = source >>> 0;
    var compiled = Module['text'].compile(HEAPU8.subarray(source, source + bytes));
    return compiled['pattern'] || -moexTextAnswer(compiled['reason']);
  },
  mx_pattern_free: function(pattern) { Module['text'].free(pattern); },
  mx_pattern_find__deps: ['$moexTextAnswer'],
  mx_pattern_find: function(pattern, text, bytes) {
    text = text >>> 0;
    var bounds = Module['text'].find(pattern, HEAPU8.subarray(text, text + bytes));
    moexTextAnswer(new Uint8Array(bounds.buffer, bounds.byteOffset, bounds.byteLength));
    return bounds.length / 2;
  },
  mx_text_normal_form__deps: ['$moexTextAnswer'],
  mx_text_normal_form: function(text, bytes, form) {
    text = text >>> 0;
    return moexTextAnswer(Module['text'].normalForm(HEAPU8.subarray(text, text + bytes), form));
  },
  mx_unicode_category: function(codePoint) { return Module['text'].category(codePoint); },
  mx_unicode_case: function(codePoint, to) { return Module['text'].changeCase(codePoint, to); }
};
mergeInto(LibraryManager.library, MoexText);
