// Emscripten library: forwards each C call of bridge.h and webgpu_bridge.h to the object that the page's worker passed
// as Module.mx (host.js, worker.js). All logic is in plain modules; this file uses only syntax that every Emscripten
// from 3.1.6 on accepts. Addresses above 2 GiB arrive as negative numbers, hence >>> 0.
var MoexBridge = {
  // ---- GPU
  mx_create_device: function(ticket) { Module['mx'].createDevice(ticket); },
  mx_destroy_device: function() { Module['mx'].destroyDevice(); },
  mx_create_buffer: function(size, usage, label, labelBytes) {
    label = label >>> 0;
    return Module['mx'].createBuffer(size, usage, HEAPU8.slice(label, label + labelBytes));
  },
  mx_destroy_buffer: function(buffer) { Module['mx'].destroyBuffer(buffer); },
  mx_write_buffer: function(buffer, offset, data, size) {
    Module['mx'].writeBuffer(buffer, offset, HEAPU8, data >>> 0, size);
  },
  mx_create_pipeline: function(wgsl, wgslBytes, entry, entryBytes, kinds, count, constants, constantsBytes, ticket) {
    wgsl = wgsl >>> 0;
    entry = entry >>> 0;
    kinds = kinds >>> 0;
    constants = constants >>> 0;
    Module['mx'].createPipeline(HEAPU8.slice(wgsl, wgsl + wgslBytes), HEAPU8.slice(entry, entry + entryBytes),
      HEAPU8.slice(kinds, kinds + count), HEAPU8.slice(constants, constants + constantsBytes), ticket >>> 0);
  },
  mx_create_bind_group: function(pipeline, bindings, count) {
    return Module['mx'].createBindGroup(pipeline, HEAPF64, (bindings >>> 0) / 8, count);
  },
  mx_destroy_bind_group: function(group) { Module['mx'].destroyBindGroup(group); },
  mx_submit: function(words, count) { Module['mx'].submit(HEAPU32, (words >>> 0) / 4, count); },
  mx_read_buffer: function(buffer, size, ticket) { Module['mx'].readBuffer(buffer, size, ticket >>> 0); },
  mx_expect_work: function(withinMs) { Module['mx'].expectWork(withinMs); },

  mx_gpu_us: function() { return Module['mx'].gpuUs(); },

  // ---- socket
  mx_connect: function() { Module['mx'].connect(); },
  mx_next_hub: function(id) {
    id = id >>> 0;
    Module['mx'].nextHub(HEAPU8.slice(id, id + 8));
  },
  mx_send: function(data, size) {
    data = data >>> 0;
    Module['mx'].send(HEAPU8.subarray(data, data + size));
  },
  mx_close: function(code, reason, bytes) {
    reason = reason >>> 0;
    Module['mx'].close(code, HEAPU8.slice(reason, reason + bytes));
  },

  // ---- The following functions fetch verified blobs.
  mx_fetch_blob: function(hex, size, urgent, ticket) {
    hex = hex >>> 0;
    Module['mx'].fetchBlob(HEAPU8.slice(hex, hex + 64), size, urgent !== 0, ticket >>> 0);
  },
  mx_accept_layer: function(hex, signature, ticket) {
    hex = hex >>> 0;
    signature = signature >>> 0;
    Module['mx'].acceptLayer(HEAPU8.slice(hex, hex + 64), HEAPU8.slice(signature, signature + 128), ticket >>> 0);
  },
  mx_cancel_fetches: function() { Module['mx'].cancelFetches(); },
  mx_serves_model: function(model, bytes) {
    model = model >>> 0;
    Module['mx'].servesModel(HEAPU8.slice(model, model + bytes));
  },

  // ---- The following functions read the files of a model by hash.
  mx_file_size: function(hex) {
    hex = hex >>> 0;
    return Module['mx'].fileSize(HEAPU8.slice(hex, hex + 64));
  },
  mx_file_read: function(hex, offset, size, to) {
    hex = hex >>> 0;
    to = to >>> 0;
    return Module['mx'].readFile(HEAPU8.slice(hex, hex + 64), offset, HEAPU8.subarray(to, to + size));
  },

  // ---- The following functions find and keep pages of keys and values.
  mx_find_pages: function(tokens, count, firstPage, stateAfter) {
    tokens = (tokens >>> 0) / 4;
    Module['mx'].findPages(HEAPU32.slice(tokens, tokens + count), firstPage, stateAfter < 0 ? null : stateAfter);
  },
  mx_keep_pages: function(turn, tokens, count, states, stateCount) {
    tokens = (tokens >>> 0) / 4;
    states = (states >>> 0) / 4;
    Module['mx'].keepPages(turn, HEAPU32.slice(tokens, tokens + count),
      Array.from(HEAPU32.subarray(states, states + stateCount)));
  },
  mx_page_read: function(page, size) {
    page = page >>> 0;
    Module['mx'].pageRead(HEAPU8.slice(page, page + size));
  },

  // Asks for a later turn of the worker's event loop.
  mx_ask_for_turn: function() { Module['mx'].askForTurn(); },

  mx_write_evicted: function(page, bytes, size, layers) {
    bytes = bytes >>> 0;
    Module['mx'].writeEvicted(page, HEAPU8.slice(bytes, bytes + size), layers);
  },
  mx_read_evicted: function(layer, pages, count, size) {
    pages = (pages >>> 0) / 4;
    Module['mx'].readEvicted(layer, Array.from(HEAPU32.subarray(pages, pages + count)), size);
  },

  // ---- The following functions return time and report status.
  mx_now_ms: function() { return performance.now(); },
  mx_random: function() { return Math.random(); },
  mx_set_timer: function(delay, ticket) { Module['mx'].setTimer(delay, ticket >>> 0); },
  mx_clear_timer: function(ticket) { Module['mx'].clearTimer(ticket >>> 0); },
  mx_report: function(json, bytes) {
    json = json >>> 0;
    Module['mx'].report(HEAPU8.slice(json, json + bytes));
  },

  // HEAPU8 is read at each copy, because the view is replaced when the WASM heap grows.
  mx_bind_heap: function() {
    Module['mx'].copyIn = function(bytes, address) { HEAPU8.set(bytes, address >>> 0); };
  }
};
mergeInto(LibraryManager.library, MoexBridge);
