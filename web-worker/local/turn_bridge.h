// The function by which the model on a processor lets the worker hear messages between its steps
// (through bridge_library.js).
#pragma once

extern "C" {
// Asks for a call of mx_on_turn() in a later turn of the worker's event loop, behind the messages
// that have arrived.
void mx_ask_for_turn();
}
