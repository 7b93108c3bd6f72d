// Texts of the list of hubs, on the status page and the admin page.
import { whole } from "../format.js";
import { sayFrom } from "../language.js";

export const table = {
  en: {
    fleet: "Hubs of this fleet",
    fleet_words: "Contributors join the hub that lacks most. A hub asks one that it can spare to move on.",
    hub_here: (id) => `${id} (this one)`,
    hub_lives: "serves",
    hub_other_model: (model) => `serves ${model}`,
    hub_gone: (seconds) => `gone for ${whole.format(seconds)} s`,
    hub_lease: (seconds) => `${whole.format(seconds)} s`,
    hub_no_lease: "ended",
    hub_all_held: "lacks none",
    hub_missing: (missing, units) => `lacks ${whole.format(missing)} of ${whole.format(units)}`,
    hub_thin: (thin) => `${whole.format(thin)} with too few copies`,
    hub_takes_none: "–",
    column_hub: "Hub",
    column_hub_state: "State",
    column_hub_lease: "Lease",
    column_hub_version: "Version",
    column_hub_streams: "Answers",
    column_hub_workers: "Contributors",
    column_hub_units: "Experts",
    column_hub_address: "Address",
  },
  de: {
    fleet: "Hubs dieser Flotte",
    fleet_words: "Helfer gehen zum Hub, dem am meisten fehlt. Wen ein Hub entbehren kann, den bittet er weiter.",
    hub_here: (id) => `${id} (dieser)`,
    hub_lives: "bedient",
    hub_other_model: (model) => `bedient ${model}`,
    hub_gone: (seconds) => `seit ${whole.format(seconds)} s weg`,
    hub_lease: (seconds) => `${whole.format(seconds)} s`,
    hub_no_lease: "abgelaufen",
    hub_all_held: "keiner fehlt",
    hub_missing: (missing, units) => `es fehlen ${whole.format(missing)} von ${whole.format(units)}`,
    hub_thin: (thin) => `${whole.format(thin)} mit zu wenigen Kopien`,
    hub_takes_none: "–",
    column_hub: "Hub",
    column_hub_state: "Zustand",
    column_hub_lease: "Frist",
    column_hub_version: "Version",
    column_hub_streams: "Antworten",
    column_hub_workers: "Helfer",
    column_hub_units: "Experten",
    column_hub_address: "Adresse",
  },
};

export const say = sayFrom(table);
