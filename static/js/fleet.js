// The list of hubs of a fleet, on the status page and the admin page. fleetRows() is pure; FleetTable draws.
import { make } from "./dom.js";
import { whole } from "./format.js";
import { say } from "./words/fleet.js";

const kindOf = (hub) => (!hub.lives ? "bad" : hub.same_package ? "good" : "warn");

function stateOf(hub) {
  if (!hub.lives) return say("hub_gone", Math.max(0, Math.round(-hub.lease_ms / 1000)));
  return hub.same_package ? say("hub_lives") : say("hub_other_model", hub.model);
}

// What the contributors of a hub do not hold. A hub that computes alone, or of an earlier version, reports no units.
function unitsOf({ lives, units = 0, units_missing = 0, units_thin = 0 }) {
  if (!lives || units === 0) return say("hub_takes_none");
  const lacks = [
    ...(units_missing > 0 ? [say("hub_missing", units_missing, units)] : []),
    ...(units_thin > 0 ? [say("hub_thin", units_thin)] : []),
  ];
  return lacks.join(", ") || say("hub_all_held");
}

// The names of the columns, and those whose cells are numbers.
export const fleet_columns = [
  "hub", "hub_state", "hub_lease", "hub_version", "hub_streams", "hub_workers", "hub_units", "hub_address",
];
const numbers = ["hub_lease", "hub_streams", "hub_workers"];

// Returns a row for each hub of `fleet` of /api/status: { id, kind, cells }, with a text for each of `fleet_columns`. A
// hub that is alone, or of an older version, sends none.
export function fleetRows(fleet = []) {
  return fleet.map((hub) => ({
    id: hub.hub,
    kind: kindOf(hub),
    cells: [hub.is_this ? say("hub_here", hub.hub) : hub.hub, stateOf(hub),
      hub.lives ? say("hub_lease", Math.max(0, Math.round(hub.lease_ms / 1000))) : say("hub_no_lease"),
      hub.version, whole.format(hub.streams), whole.format(hub.workers), unitsOf(hub), hub.address],
  }));
}

// Draws the hubs into `head` (a row of a table) and `body`, and hides `box` while there are none. It draws only what
// has changed, so that a selection of text stays.
export class FleetTable {
  constructor(box, head, body) {
    Object.assign(this, { box, head, body, drawn: "" });
  }

  draw(fleet) {
    const hubs = fleetRows(fleet);
    this.box.hidden = hubs.length === 0;
    const heads = fleet_columns.map((name) => say(`column_${name}`));
    const told = JSON.stringify([heads, hubs]);
    if (told === this.drawn) return;
    this.drawn = told;
    const kinds = fleet_columns.map((name) => (numbers.includes(name) ? "number" : ""));
    this.head.replaceChildren(...heads.map((words, i) => make("th", kinds[i], words, { scope: "col" })));
    this.body.replaceChildren(...hubs.map(({ kind, cells }) => {
      const row = make("tr");
      row.append(...cells.map((words, i) => {
        const is_state = fleet_columns[i] === "hub_state";
        const cell = make("td", kinds[i], is_state ? "" : words, { "data-name": heads[i] });
        if (is_state) cell.append(make("span", `pill ${kind}`, words));
        return cell;
      }));
      return row;
    }));
  }
}
