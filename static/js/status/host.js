// Sentences of the status page on what the operator must act on: the certificate and the disk.
import { bytes } from "../format.js";
import { say } from "../words/status.js";

const day_s = 86_400;

function certificateWords(left_s) {
  if (left_s === null) return "";
  if (left_s <= 0) return say("certificate_expired");
  if (left_s <= day_s) return say("certificate_day");
  return left_s <= 30 * day_s ? say("certificate_days", Math.floor(left_s / day_s)) : "";
}

// Returns the sentences for `host` of /api/status, or an empty text if the operator need not act. A hub of an older
// version sends no `host`.
export function hostWords(host) {
  if (!host) return "";
  const disk = host.state_is_full ? say("disk_full", bytes(host.state_free_bytes)) : "";
  return [certificateWords(host.certificate_left_s), disk].filter(Boolean).join(" ");
}
