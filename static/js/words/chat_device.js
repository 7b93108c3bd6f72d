// Texts of the chat page about "this device": the place of computation, the model in the browser, and what is kept.
import { bytes, count } from "../format.js";

export const device_words = {
  en: {
    place: "Answers are computed",
    place_by_hub: "by the hub",
    place_by_device: "on this device only",
    place_by_either: "where it is faster",
    place_by_refine: "here at once, then by the hub",
    quality: "The hub's model is another, better one",
    quality_quickest: "the quickest answer",
    quality_best: "the best answer: the hub's",
    place_hub: "hub",
    place_hub_title: "This answer came from the hub and its contributors",
    place_device: "this device",
    place_device_title: "This answer was computed in this browser; nothing of it left the device",
    place_handed: "hub and this device",
    place_handed_title: "The hub read the question, and this browser wrote the answer",
    place_both: "hub, then this device",
    place_both_title: "Parts of this answer were computed in either place",
    place_drafted: (model) => `this device, ${model}`,
    place_drafted_title: (model) => `This answer was computed in this browser, by the small model ${model}; the hub `
      + "was asked, too",
    place_refined: (model) => `hub, ${model}`,
    place_refined_title: (model) => `This answer came from the hub and its contributors, by the model ${model}`,
    refine_pill: "this device, then the hub",
    refine_pill_short: "both",
    refine_welcome: "A small model on this device answers at once, and the hub's answer is offered in its place. What "
      + "you write goes to the hub, too.",
    refine_asking: (size) => `A small model takes ${size}. It is downloaded from the hub once and kept in this `
      + "browser. Then it answers each question at once, and the hub's answer is offered in its place.",
    refine_coming: "This is a first answer. The hub writes a better one.",
    refine_ready: "The hub has a better answer.",
    refine_failed: "The hub gave no better answer.",
    refine_left: "The hub's answer was not completed.",
    refine_show: "Show it",
    device_progress: "Progress of loading the model",
    device_looking: "Checking what has to be loaded.",
    device_asking: (size) => `The model takes ${size}. It is downloaded from the hub once and kept in this browser. `
      + "Then answers are computed here, even without the hub, and what you write stays on this device.",
    device_on_processor: "This browser finds no GPU: answers are computed on this device's processor, which is slower.",
    device_load: (size) => `Load ${bytes(size)}`,
    device_fetching: (done, all) => `Loading: ${done} of ${all}.`,
    device_warming: "Copying the model to the GPU.",
    device_warming_processor: "Preparing the model for this device's processor.",
    device_ready: (adapter) => `Ready${adapter ? `, on ${adapter}` : ""}.`,
    device_ready_software: (adapter) => `Ready, but slow: this browser computes without a GPU${adapter
      ? ` (${adapter})` : ""}.`,
    device_ready_processor: (rate) => `Ready: answers are computed on this device's processor${rate
      ? `, about ${rate} tokens a second` : ""}.`,
    device_paged: "The GPU's memory has not room for all of a long conversation: a part is kept in this browser's "
      + "files, encrypted, and answers are then slower.",
    device_short: (tokens) => `The GPU's memory is short, so a conversation has room for ${count(tokens, "token")}.`,
    device_short_processor: (tokens) => `Memory is short, so a conversation has room for ${count(tokens, "token")}.`,
    device_kept: "This page also opens without the hub.",
    device_form_hint: "The form of answers works with the hub only; this device writes plain text.",
    either_pill: "this device or the hub",
    either_pill_coming: "the hub; this device loads",
    either_pill_missing: "the hub; this device is not ready",
    either_pill_away: "this device; the hub is away",
    either_pill_short: "either",
    either_away: "The hub does not answer. Until it is back, this device answers alone.",
    either_welcome: "Each answer is computed where it is faster: on this device or by the hub. What you write may go "
      + "to the hub.",
    either_asking: (size) => `The model takes ${size}. It is downloaded from the hub once and kept in this browser. `
      + "Then each answer is computed where it is faster, here or by the hub; while the hub is away, here.",
    either_welcome_coming: "Until the model is on this device, the hub answers, so what you write goes to it.",
    device_pill: "this device",
    device_pill_coming: "this device, loading",
    device_pill_missing: "this device, not ready",
    device_pill_processor: "this device's processor",
    device_pill_short: "here",
    device_welcome_processor: "Answers are computed on this device's processor; what you write does not leave this "
      + "device.",
    device_welcome: "Answers are computed on this device; what you write does not leave it.",
    device_welcome_coming: "Answers are computed on this device; what you write does not leave it. The model is still "
      + "loading: what you ask now is answered when it is ready.",
    device_welcome_missing: "You chose this device for the answers, so nothing that you write goes to the hub. The "
      + "model is not here yet: the settings say what is missing.",
    waits_for_device: "The model is loading; the answer begins when it is ready.",
    waits_for_tab: "This device answers a question of another tab first.",
    reads_early: (layers, all) => `The model is loading; ${layers} of its ${all} layers have read your question.`,
    device_not_ready: "The model is not on this device yet. The settings show the progress.",
    device_no_form: "This device writes plain text only: empty the form of answers in the settings, or let "
      + "the hub answer.",
    device_no_files: "This browser keeps no files for this page, so no model can be here. Use a current browser, over "
      + "https or on the hub's own machine.",
    device_no_gpu: "WebGPU finds no GPU in this browser, so nothing can be computed here, and nothing was loaded. "
      + "Switch on hardware acceleration in the browser's settings, or update the graphics driver.",
    device_no_space: (why) => `The model does not fit this device: ${why}.`,
    device_io_error: (why) => "This browser's storage is full, or the files of this page were removed: make room on "
      + `the disk, then start again (${why}).`,
    device_no_memory: (why) => `The GPU has too little memory for the model: ${why}.`,
    device_processor_too_small: (why) => "This browser finds no GPU, and the model is too large for this device's "
      + `processor: ${why}.`,
    device_too_small: (size) => `That is more than this device's memory, about ${size}: it will hardly fit.`,
    device_other_hub: (why) => `${why}. A new key can be accepted on the page "Lend a GPU".`,
    device_lost: (why) => `The GPU was lost: ${why}.`,
    device_failed: (why) => `This device cannot answer: ${why}.`,
    remember_ask: (days) => "Shall this device remember conversations? Then one goes on after a reload without being "
      + "read again from its beginning. What the model computed from your words is kept in this browser only, "
      + `encrypted, until it was not used for ${days} days. You can delete it here at any time.`,
    remember_yes: "Remember",
    remember_no: "Do not remember",
    remember_stop: "Stop, and delete it",
    remember_opening: "Looking for what this device remembers.",
    remember_on: (size, most, days) => `This device remembers conversations: ${size} of at most ${most}, in this `
      + `browser only, encrypted. What was not used for ${days} days is deleted.`,
    remember_count: (num) => `${count(num, "conversation")} can go on without being read again.`,
    remember_off: "This device does not remember conversations: after a reload, one is read again from its beginning.",
    remember_full: "There is no room for more, so the rest is read again after a reload.",
    remember_failed: (why) => `This browser cannot keep what was read (${why}), so after a reload a conversation is `
      + "read again from its beginning.",
  },
  de: {
    place: "Antworten werden berechnet",
    place_by_hub: "vom Hub",
    place_by_device: "nur auf diesem Gerät",
    place_by_either: "wo es schneller geht",
    place_by_refine: "sofort hier, dann vom Hub",
    quality: "Das Modell des Hubs ist ein anderes, besseres",
    quality_quickest: "die schnellste Antwort",
    quality_best: "die beste Antwort: die des Hubs",
    place_hub: "Hub",
    place_hub_title: "Diese Antwort kam vom Hub und seinen Helfern",
    place_device: "dieses Gerät",
    place_device_title: "Diese Antwort wurde in diesem Browser berechnet; nichts davon hat das Gerät verlassen",
    place_handed: "Hub und dieses Gerät",
    place_handed_title: "Der Hub hat die Frage gelesen, dieser Browser hat die Antwort geschrieben",
    place_both: "Hub, dann dieses Gerät",
    place_both_title: "Teile dieser Antwort wurden an beiden Orten berechnet",
    place_drafted: (model) => `dieses Gerät, ${model}`,
    place_drafted_title: (model) => `Diese Antwort wurde in diesem Browser berechnet, vom kleinen Modell ${model}; der `
      + "Hub wurde auch gefragt",
    place_refined: (model) => `Hub, ${model}`,
    place_refined_title: (model) => `Diese Antwort kam vom Hub und seinen Helfern, vom Modell ${model}`,
    refine_pill: "dieses Gerät, dann der Hub",
    refine_pill_short: "beide",
    refine_welcome: "Ein kleines Modell auf diesem Gerät antwortet sofort, und die Antwort des Hubs wird an deren "
      + "Stelle angeboten. Was du schreibst, geht auch zum Hub.",
    refine_asking: (size) => `Ein kleines Modell hat ${size}. Es wird einmal vom Hub geladen und in diesem Browser `
      + "behalten. Dann beantwortet es jede Frage sofort, und die Antwort des Hubs wird an deren Stelle angeboten.",
    refine_coming: "Das ist eine erste Antwort. Der Hub schreibt eine bessere.",
    refine_ready: "Der Hub hat eine bessere Antwort.",
    refine_failed: "Der Hub gab keine bessere Antwort.",
    refine_left: "Die Antwort des Hubs wurde nicht fertig.",
    refine_show: "Zeigen",
    device_progress: "Das Modell auf seinem Weg",
    device_looking: "Schaut, was zu laden ist.",
    device_asking: (size) => `Das Modell hat ${size}. Es wird einmal vom Hub geladen und in diesem Browser behalten. `
      + "Dann werden Antworten hier berechnet, auch während der Hub fort ist, und was du schreibst, bleibt auf diesem "
      + "Gerät.",
    device_on_processor: "Dieser Browser findet keine GPU: Antworten werden auf dem Prozessor dieses Geräts berechnet, "
      + "und das dauert länger.",
    device_load: (size) => `${bytes(size)} laden`,
    device_fetching: (done, all) => `Lädt: ${done} von ${all}.`,
    device_warming: "Das Modell kommt auf die GPU.",
    device_warming_processor: "Das Modell wird für den Prozessor dieses Geräts vorbereitet.",
    device_ready: (adapter) => `Bereit${adapter ? `, auf ${adapter}` : ""}.`,
    device_ready_software: (adapter) => `Bereit, aber langsam: dieser Browser rechnet ohne GPU${adapter
      ? ` (${adapter})` : ""}.`,
    device_ready_processor: (rate) => `Bereit: Antworten werden auf dem Prozessor dieses Geräts berechnet${rate
      ? `, etwa ${rate} Token pro Sekunde` : ""}.`,
    device_paged: "Ein langes Gespräch passt nicht ganz in den Speicher der GPU: Ein Teil wird verschlüsselt in "
      + "Dateien dieses Browsers gehalten; Antworten dauern dann länger.",
    device_short: (tokens) => `Der Speicher der GPU ist knapp; ein Gespräch hat Platz für ${count(tokens, "Token",
      "Token")}.`,
    device_short_processor: (tokens) => `Der Speicher ist knapp; ein Gespräch hat Platz für ${count(tokens, "Token",
      "Token")}.`,
    device_kept: "Diese Seite öffnet sich auch ohne den Hub.",
    device_form_hint: "Die Form der Antworten zählt nur beim Hub: dieses Gerät schreibt einfachen Text.",
    either_pill: "dieses Gerät oder der Hub",
    either_pill_coming: "der Hub; dieses Gerät lädt",
    either_pill_missing: "der Hub; dieses Gerät ist nicht bereit",
    either_pill_away: "dieses Gerät; der Hub ist fort",
    either_pill_short: "beide",
    either_away: "Der Hub antwortet nicht. Bis er wieder da ist, antwortet dieses Gerät allein.",
    either_welcome: "Jede Antwort wird da berechnet, wo es schneller geht: auf diesem Gerät oder vom Hub. Was du "
      + "schreibst, kann zum Hub gehen.",
    either_asking: (size) => `Das Modell hat ${size}. Es wird einmal vom Hub geladen und in diesem Browser behalten. `
      + "Dann wird jede Antwort da berechnet, wo es schneller geht, hier oder vom Hub; ist der Hub fort, hier.",
    either_welcome_coming: "Bis das Modell auf diesem Gerät ist, antwortet der Hub; was du schreibst, geht also zu "
      + "ihm.",
    device_pill: "dieses Gerät",
    device_pill_coming: "dieses Gerät, lädt",
    device_pill_missing: "dieses Gerät, nicht bereit",
    device_pill_processor: "Prozessor dieses Geräts",
    device_pill_short: "hier",
    device_welcome_processor: "Antworten werden auf dem Prozessor dieses Geräts berechnet; was du schreibst, verlässt "
      + "das Gerät nicht.",
    device_welcome: "Antworten werden auf diesem Gerät berechnet; was du schreibst, verlässt es nicht.",
    device_welcome_coming: "Antworten werden auf diesem Gerät berechnet; was du schreibst, verlässt es nicht. Das "
      + "Modell lädt noch: was du jetzt fragst, wird beantwortet, sobald es bereit ist.",
    device_welcome_missing: "Du hast dieses Gerät für die Antworten gewählt, also geht nichts, was du schreibst, zum "
      + "Hub. Das Modell ist noch nicht hier: was fehlt, steht in den Einstellungen.",
    waits_for_device: "Das Modell lädt; die Antwort beginnt, sobald es bereit ist.",
    waits_for_tab: "Dieses Gerät beantwortet zuerst eine Frage aus einem anderen Tab.",
    reads_early: (layers, all) => `Das Modell lädt; ${layers} seiner ${all} Schichten haben deine Frage gelesen.`,
    device_not_ready: "Das Modell ist noch nicht auf diesem Gerät. Wie weit es ist, sagen die Einstellungen.",
    device_no_form: "Dieses Gerät gibt nur einfachen Text: leere die Form der Antworten in den Einstellungen, oder "
      + "lass den Hub antworten.",
    device_no_files: "Dieser Browser behält für diese Seite keine Dateien, also kann hier kein Modell sein. Nimm einen "
      + "aktuellen Browser, über https oder auf dem Rechner des Hubs.",
    device_no_gpu: "WebGPU findet in diesem Browser keine GPU; hier kann also nichts berechnet werden, und geladen "
      + "wurde nichts. Schalte in seinen Einstellungen die Hardwarebeschleunigung ein, oder erneuere den "
      + "Grafiktreiber.",
    device_no_space: (why) => `Das Modell passt nicht auf dieses Gerät: ${why}.`,
    device_io_error: (why) => "Der Speicher dieses Browsers ist voll, oder die Dateien dieser Seite wurden gelöscht: "
      + `mach Platz auf der Platte und beginne dann neu (${why}).`,
    device_no_memory: (why) => `Die GPU hat zu wenig Speicher für das Modell: ${why}.`,
    device_processor_too_small: (why) => "Dieser Browser findet keine GPU, und das Modell ist zu groß für den "
      + `Prozessor dieses Geräts: ${why}.`,
    device_too_small: (size) => `Das ist mehr, als dieses Gerät an Speicher hat, etwa ${size}: es wird kaum passen.`,
    device_other_hub: (why) => `${why}. Ein neuer Schlüssel lässt sich auf der Seite „GPU leihen“ annehmen.`,
    device_lost: (why) => `Die GPU ging verloren: ${why}.`,
    device_failed: (why) => `Dieses Gerät kann nicht antworten: ${why}.`,
    remember_ask: (days) => "Soll sich dieses Gerät Gespräche merken? Dann geht eines nach einem Neuladen weiter, ohne "
      + "von vorn gelesen zu werden. Was das Modell aus deinen Worten berechnet hat, bleibt nur in diesem Browser, "
      + `verschlüsselt, bis es ${days} Tage lang nicht gebraucht wurde. Du kannst es hier jederzeit löschen.`,
    remember_yes: "Merken",
    remember_no: "Nicht merken",
    remember_stop: "Beenden und löschen",
    remember_opening: "Sucht, was sich dieses Gerät gemerkt hat.",
    remember_on: (size, most, days) => `Dieses Gerät merkt sich Gespräche: ${size} von höchstens ${most}, nur in `
      + `diesem Browser, verschlüsselt. Was ${days} Tage lang nicht gebraucht wurde, wird gelöscht.`,
    remember_count: (num) => `Ohne erneutes Lesen geht es weiter in ${count(num, "Gespräch", "Gesprächen")}.`,
    remember_off: "Dieses Gerät merkt sich keine Gespräche: nach einem Neuladen wird eines wieder von vorn gelesen.",
    remember_full: "Für mehr ist kein Platz; der Rest wird nach einem Neuladen wieder gelesen.",
    remember_failed: (why) => `Dieser Browser kann das Gelesene nicht behalten (${why}); nach einem Neuladen wird ein `
      + "Gespräch wieder von vorn gelesen.",
  },
};
