// Texts that several pages share: figures, files, deletion of all data.
import { sayFrom } from "../language.js";

export const table = {
  en: {
    yesterday: "yesterday",
    copied: "Copied",
    copy_refused: "Copying is not allowed here",
    all_gone: "Everything that this site stored in this browser has been deleted.",
    partly_gone: "The browser did not delete everything. Clear this site's data in the browser's settings.",
  },
  de: {
    yesterday: "gestern",
    copied: "Kopiert",
    copy_refused: "Kopieren ist hier nicht erlaubt",
    all_gone: "Alles, was diese Seite in diesem Browser aufbewahrt hat, ist gelöscht.",
    partly_gone: "Der Browser wollte nicht alles löschen. Lösche die Daten dieser Seite in seinen Einstellungen.",
  },
};

export const say = sayFrom(table);
