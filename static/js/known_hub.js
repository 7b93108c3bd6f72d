// The key of the hub that this browser knows (protocol/PROTOCOL.md, "Signatures"), as 64 hexadecimal digits. A proxy
// may serve several hubs below paths of one origin, so the path is a part of the name under which the key is stored.
import { root } from "./api.js";
import { recall, remember } from "./storage.js";

const path = new URL(root).pathname;
const kept_as = path === "/" ? "moex-hub-key" : `moex-hub-key${path}`;

// Returns "" if no key is known.
export const knownHub = () => recall(kept_as, "");
export const rememberHub = (key) => remember(kept_as, key);
