// The hubs of a fleet on the status page. The module is pure: it uses neither the page nor the hub.
import { whole } from "../format.js";
import { say } from "../words/status.js";

const kindOf = (hub) => (!hub.lives ? "bad" : hub.same_package ? "good" : "warn");

function stateOf(hub) {
  if (!hub.lives) return say("hub_gone", Math.max(0, Math.round(-hub.lease_ms / 1000)));
  return hub.same_package ? say("hub_lives") : say("hub_other_model", hub.model);
}

export const fleet_columns = ["hub", "hub_state", "hub_version", "hub_streams", "hub_workers", "hub_address"];

// Returns a row for each hub of `fleet` of /api/status: { id, kind, cells }, with a text for each of `fleet_columns`. A
// hub that is alone, or of an older version, sends none.
export function fleetRows(fleet = []) {
  return fleet.map((hub) => ({
    id: hub.hub,
    kind: kindOf(hub),
    cells: [hub.is_this ? say("hub_here", hub.hub) : hub.hub, stateOf(hub), hub.version, whole.format(hub.streams),
      whole.format(hub.workers), hub.address],
  }));
}
