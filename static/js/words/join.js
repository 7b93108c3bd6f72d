// Texts of the join page. `details` translates sentences of the worker's program, which are English.
import { count, whole } from "../format.js";
import { language, sayFrom } from "../language.js";

const experts = (n) => count(n, "expert");
const experten = (n) => count(n, "Experte", "Experten");

export const table = {
  en: {
    title: "Lend a GPU to MoEx",
    pages: "Pages",
    chat: "Chat",
    lend: "Lend a GPU",
    status: "Status",
    language: "Language",
    head: "Lend this browser's GPU",
    intro: "This page computes small parts of a language model for the people who use this hub. Nothing is installed; "
      + "close the tab to stop.",

    // the stage
    none: "not started",
    none_detail: "One button, and this tab is part of the model.",
    starting: "starting",
    starting_detail: "Looking for the GPU and preparing its programs.",
    connecting: "connecting",
    connecting_detail: "Connecting to the hub.",
    downloading: "downloading",
    downloading_detail: "Fetching the experts that this tab will hold.",
    warming: "checking",
    warming_detail: "Checking the GPU's results against known answers.",
    serving: "serving",
    serving_detail: "This tab computes its experts for the hub.",
    reserve: "in reserve",
    reserve_detail: "In reserve: this hub is faster alone just now. It asks this tab as soon as that changes, for "
      + "example when many people chat.",
    paused: "paused",
    paused_detail: "The weights stay here; nothing is computed until you resume.",
    offline: "offline",
    offline_detail: "The hub does not answer. This page tries again by itself.",
    gpu_lost: "GPU lost",
    gpu_lost_detail: "The browser took the GPU away. This page starts again by itself.",
    refused: "refused",
    refused_detail: "The hub refused this tab.",
    accept_key: "Accept the new key",
    hub_key: "Key of the hub",
    failed: "cannot serve",
    failed_detail: "This browser or GPU cannot serve.",
    stopped: "stopped",
    stopped_detail: "This tab no longer takes part. Thank you.",
    waiting: "waiting",
    ready: "ready",
    ready_detail: "The hub has no work just now. Leave the tab open.",
    on_processor: "It is computing on the processor, on one thread.",
    no_network: "This device has no network. The page continues by itself when the network is back.",
    next_try: (seconds) => `Next try in ${seconds} s.`,
    insecure: "Browsers give the GPU to secure pages only. Open this link over https (the operator can start the hub "
      + "with --tls-cert and --tls-key), or at http://localhost on the hub's own machine.",
    no_token: "This link has no join token: ask the operator of the hub for the full link.",
    worker_failed: (reason) => `The worker program failed: ${reason || "it did not load"}. Reload the page; if it `
      + "happens again, tell the operator of the hub.",
    download: "Download",
    progress: (fetched, all, ready, assigned) => `${fetched} of ${all}, ${ready} of ${assigned} experts ready`,
    pace: (speed, left) => `, ${speed}/s, about ${left} left`,
    share: (ready, units, percent) => `This tab holds ${ready} of the model's ${experts(units)}: ${percent} %.`,
    layers: (first, last) => (first === last ? `It computes layer ${first} whole.`
      : `It computes layers ${first} to ${last} whole.`),
    offer: (size) => `Lends at most ${size} of this device's memory. You can change this later, below.`,
    link: "Join link",
    use_link: "Use this link",
    bad_link: "This is no join link: it ends in join.html#token= and the token.",
    start: "Start",
    start_again: "Start again",
    pause: "Pause",
    resume: "Resume",
    stop: "Stop",

    // figures
    calls: "expert calls answered",
    rate: "calls per second",
    tokens_part: "tokens per second: this tab's part",
    one_expert: (time, most) => `One expert takes ${time} here: at most about ${most} calls a second.`,
    experts: "experts held here",
    round: "per round, median",
    round_gpu: (time) => `per round, median; ${time} on the GPU`,
    traffic: "received / sent",
    downloaded: "weights downloaded",

    // limits
    more: "More: limits, times, your work",
    use: "What it may use",
    memory: "Memory, at most",
    more_memory: "More memory holds more of the model. A change takes effect at once, and experts that still fit stay.",
    room_for_all: "Room for the whole model.",
    room: (room, units) => `Room for about ${experts(room)}${units > 0 ? ` of ${whole.format(units)}` : ""}.`,
    keep: "Kept on disk, at most",
    keep_none: "nothing more",
    keep_nothing: "Experts that do not fit into memory are left to others.",
    keep_slower: "Experts that do not fit into memory are kept on disk: slower, but never wrong.",
    keep_quota: (quota) => `This browser gives the site ${quota}; the rest is downloaded again when it is needed.`,
    keeps: (held, resident, in_memory) => `Keeps ${experts(held)} on disk, ${whole.format(resident)} on the GPU, `
      + `${in_memory} in this computer's memory.`,
    power: "Power",
    power_all: "The hub sends as much work as it wants. On mains, the GPU stays awake while a text is written.",
    power_part: (percent) => `The hub sends this tab about ${percent} % of the work that it could do.`,
    nickname: "Name shown to the operator (optional)",
    gpu: "GPU",
    gpu_later: "shown after Start",
    how_fast: "How fast is it?",
    cpu_only: (threads) => `none: computing on the processor (${threads}).`,
    software_gpu: " (software: slow, for tests)",
    speed: "Speed",
    in_use: "In use",
    memory_parts: (used, limit, weights) =>
      `${used} of ${limit}: ${weights} of experts, the rest for calls and experts to come`,
    model: "Model",
    status_page: "Status page",
    listed_as: (name) => `listed as ${name}`,
    stored: "Stored here",
    unknown: "unknown",
    stored_of: (used, quota) => `${used} of ${quota} that this browser gives the site`,
    store_stays: "The browser keeps the stored experts until you delete them.",
    store_may_go: "The browser may delete the stored experts when its disk runs low.",
    store_full: (n) => `There is no more room on the disk: ${count(n, "expert is", "experts are")} not stored, but `
      + "downloaded again when needed.",
    store_device: (size) => `The model for “this device” uses ${size} of the disk and stays.`,
    store_made_room: (n) => `${count(n, "stored expert was", "stored experts were")} deleted to make room for others.`,
    store_damaged: (n) => `${count(n, "stored expert was", "stored experts were")} damaged and downloaded again; `
      + "damaged experts are never used.",
    store_gone: (n) => `${count(n, "stored expert was", "stored experts were")} missing on the disk and `
      + "downloaded again.",
    no_values: "This browser stores no settings for this page: name, limits and rules last until the page is closed.",
    store_failed: (why) => `Experts could not be stored (${why}): the next visit downloads them again.`,

    // rules
    rules: "When it may work",
    metered: "This connection seems to be metered. The weights of a large model are gigabytes: set a daily limit "
      + "first.",
    mains: "Only on mains, not on battery",
    hidden: "Only while another tab or window is in front",
    idle: "Only while nobody uses this computer",
    awake: "Keep the screen on while it works",
    again: "Start by itself when this page is loaded again",
    from: "From",
    to: "To",
    any: "any",
    data: "Data per day, GB",
    no_limit: "no limit",
    used_today: (used) => `${used} today`,
    bad_data: "A number of gigabytes, like 2 or 0.5. Empty means no limit.",
    on_battery: "This machine runs on its battery. Work continues by itself on mains.",
    outside_hours: (from, to) => `It works from ${from}:00 to ${to}:00, as you set it.`,
    data_used: (cap) => `Today's ${cap} of data are used up. Work continues by itself tomorrow.`,
    in_front: "It works while another tab or window is in front of this page.",
    computer_used: "It works once nobody has used this computer for a minute.",
    in_front_and_used: "It works while another tab or window is in front, or once nobody has used this computer for a "
      + "minute.",
    idle_unknown: "This browser may not report whether somebody uses this computer. Allow it for this page, or "
      + "remove that rule.",

    // the hub
    hub: (model, workers, missing) => {
      const who = workers === 0 ? "Nobody lends it a GPU yet"
        : `${count(workers, "contributor is", "contributors are")} here`;
      const need = missing > 0 ? `, and ${count(missing, "expert has", "experts have")} no holder` : "";
      return `This hub serves ${model}. ${who}${need}.`;
    },
    gap: (missing, computes_itself) => (missing > 0
      ? `${count(missing, "expert is", "experts are")} held by ${computes_itself ? "no contributor" : "nobody"}`
      : "Every expert is held by a contributor"),
    not_scarce: "; each has as many holders as the operator wants.",
    second_copies: (layers) => `; a further copy is needed most in ${layers.length === 1 ? "layer" : "layers"} `
      + `${layers.map((layer) => whole.format(layer)).join(", ")}.`,
    scarce: (layers) => `; help is needed most in ${layers.length === 1 ? "layer" : "layers"} `
      + `${layers.map((layer) => whole.format(layer)).join(", ")}.`,
    gigabyte_all: "A gigabyte here holds the whole model.",
    gigabyte: (room, units) => `A gigabyte here holds ${experts(room)} of ${whole.format(units)}.`,
    one_takes: (size) => `One expert takes ${size}.`,

    // work
    work: "Your work here",
    work_none: "This hub can count what you lend, over all your tabs and machines. This needs an identity: a key that "
      + "is created in this browser and stays here. The hub sees its public half; others see only the count.",
    work_share: "of today's work",
    work_total: "expert calls in all",
    work_rank: "rank",
    work_streak: "in a row",
    days: (n) => count(n, "day"),
    rank: (rank, of) => `${rank} of ${of}`,
    not_verified: "This hub does not compute answers again, so none of your work is verified.",
    verified: (percent) => `${percent} % of your work is verified: the hub recomputes some answers.`,
    spark: (days) => `Expert calls on each of the last 30 days; ${count(days, "day")} with work.`,
    shows_name: "Show my name to others who lend here",
    keep_count: "Keep count",
    take_along: "Export",
    bring_one: "Import",
    delete: "Delete",
    identity_file: "File of an identity",
    board: "Top contributors",
    board_rank: "Rank",
    board_who: "Name",
    board_calls: "Expert calls",
    you: "you",
    somebody: "anonymous",
    no_ed25519: "This browser has no Ed25519, so it can keep no identity. The tab works all the same, without a count.",
    does_not_sign: (why) => `This browser does not sign: ${why}`,
    export_words: "The file opens with this passphrase only, and nobody can recover it.",
    bring: "Import it",
    bring_replaces: "The identity in the file replaces the one in this browser.",
    bring_words: "The passphrase with which the file was written.",
    drop: "Delete it?",
    drop_words: "The hub deletes its counts, and this browser deletes its key. This cannot be undone.",
    not_forgotten: (why) => `The hub did not delete it: ${why || "it does not answer"}.`,
    no_identity: "This file is not a MoEx identity.",
    bad_passphrase: "The passphrase does not open this file, or the file is damaged.",
    passphrase: "Passphrase, at least 8 letters",
    leave_it: "Cancel",
    go_on: "Continue",

    // notes
    know: "What you should know",
    know_programs: "Only programs of this page run, on the GPU and inside the browser's sandbox; weights are checked "
      + "against their hash before use, and stay stored here until you delete them or the browser needs the room.",
    know_processor: "A browser without WebGPU computes on the processor, on one thread; this page says so.",
    know_numbers: "This tab sees internal numbers of other people's conversations, no text. They can still reveal some "
      + "of what was written: keep them to yourself.",
    know_power: "A busy GPU draws power. Pause at any moment; the hub continues without you.",

    forget: "Forget everything",
    forget_ask: "Forget everything?",
    forget_what: "Stored weights, the join token, your name, limits and identity here, and on the chat page the "
      + "conversations, what the device remembers of them, settings and API key are removed from this browser. This "
      + "cannot be undone.",
    keep_it: "Keep it",
  },

  de: {
    title: "MoEx eine GPU leihen",
    pages: "Seiten",
    chat: "Chat",
    lend: "GPU leihen",
    status: "Status",
    language: "Sprache",
    head: "Die GPU dieses Browsers leihen",
    intro: "Diese Seite rechnet kleine Teile eines Sprachmodells für alle, die diesen Hub benutzen. Installiert wird "
      + "nichts; schließe den Tab, und es ist vorbei.",

    none: "nicht gestartet",
    none_detail: "Ein Knopf, und dieser Tab gehört zum Modell.",
    starting: "startet",
    starting_detail: "Sucht die GPU und bereitet ihre Programme vor.",
    connecting: "verbindet sich",
    connecting_detail: "Ruft den Hub.",
    downloading: "lädt",
    downloading_detail: "Holt die Experten, die dieser Tab halten wird.",
    warming: "prüft",
    warming_detail: "Vergleicht, was die GPU rechnet, mit bekannten Ergebnissen.",
    serving: "arbeitet",
    serving_detail: "Dieser Tab antwortet für seine Experten.",
    reserve: "in Reserve",
    reserve_detail: "In Reserve: Dieser Hub ist gerade allein schneller. Er fragt diesen Tab, sobald sich das ändert, "
      + "etwa wenn viele chatten.",
    paused: "Pause",
    paused_detail: "Die Gewichte bleiben hier; gerechnet wird erst wieder, wenn du weitermachst.",
    offline: "offline",
    offline_detail: "Der Hub antwortet nicht. Diese Seite versucht es von selbst wieder.",
    gpu_lost: "GPU verloren",
    gpu_lost_detail: "Der Browser hat die GPU entzogen. Diese Seite beginnt von selbst neu.",
    refused: "abgelehnt",
    refused_detail: "Der Hub hat diesen Tab abgelehnt.",
    accept_key: "Neuen Schlüssel annehmen",
    hub_key: "Schlüssel des Hubs",
    failed: "geht nicht",
    failed_detail: "Mit diesem Browser oder dieser GPU geht es nicht.",
    stopped: "beendet",
    stopped_detail: "Dieser Tab macht nicht mehr mit. Danke.",
    waiting: "wartet",
    ready: "bereit",
    ready_detail: "Der Hub hat gerade keine Arbeit. Lass den Tab offen.",
    on_processor: "Er rechnet auf dem Prozessor, in einem Thread.",
    no_network: "Dieses Gerät hat kein Netz. Die Seite macht von selbst weiter, sobald es wieder da ist.",
    next_try: (seconds) => `Nächster Versuch in ${seconds} s.`,
    insecure: "Browser geben die GPU nur sicheren Seiten. Öffne diesen Link über https (der Gastgeber kann den Hub mit "
      + "--tls-cert und --tls-key starten) oder als http://localhost auf dem Rechner des Hubs.",
    no_token: "Diesem Link fehlt das Beitrittszeichen: bitte den Gastgeber um den ganzen Link.",
    worker_failed: (reason) => `Das Rechenprogramm ist ausgefallen: ${reason || "es wurde nicht geladen"}. Lade die `
      + "Seite neu; geschieht es wieder, sag es dem Gastgeber.",
    download: "Download",
    progress: (fetched, all, ready, assigned) => `${fetched} von ${all}, ${ready} von ${assigned} Experten bereit`,
    pace: (speed, left) => `, ${speed}/s, noch etwa ${left}`,
    share: (ready, units, percent) =>
      `Dieser Tab hält ${ready} von ${count(units, "Experten", "Experten")} des Modells: ${percent} %.`,
    layers: (first, last) => (first === last ? `Er rechnet Schicht ${first} ganz.`
      : `Er rechnet die Schichten ${first} bis ${last} ganz.`),
    offer: (size) => `Leiht höchstens ${size} vom Speicher dieses Geräts. Das lässt sich später unten ändern.`,
    link: "Beitrittslink",
    use_link: "Diesen Link nehmen",
    bad_link: "Das ist kein Beitrittslink: er endet mit join.html#token= und dem Zeichen.",
    start: "Start",
    start_again: "Noch einmal starten",
    pause: "Pause",
    resume: "Weiter",
    stop: "Beenden",

    calls: "Expertenaufrufe beantwortet",
    rate: "Aufrufe pro Sekunde",
    tokens_part: "Token pro Sekunde: der Teil dieses Tabs",
    one_expert: (time, most) => `Ein Experte dauert hier ${time}: höchstens etwa ${most} Aufrufe pro Sekunde.`,
    experts: "Experten hier",
    round: "pro Runde, Median",
    round_gpu: (time) => `pro Runde, Median; davon ${time} auf der GPU`,
    traffic: "empfangen / gesendet",
    downloaded: "Gewichte geladen",

    more: "Mehr: Grenzen, Zeiten, deine Arbeit",
    use: "Was er benutzen darf",
    memory: "Speicher, höchstens",
    more_memory: "Mehr Speicher hält mehr vom Modell. Eine Änderung gilt sofort; was noch passt, bleibt.",
    room_for_all: "Platz für das ganze Modell.",
    room: (room, units) => `Platz für etwa ${experten(room)}${units > 0 ? ` von ${whole.format(units)}` : ""}.`,
    keep: "Auf der Platte, höchstens",
    keep_none: "nichts weiter",
    keep_nothing: "Experten, die nicht in den Speicher passen, bleiben anderen überlassen.",
    keep_slower: "Experten ohne Platz im Speicher liegen auf der Platte bereit: langsamer, nie falsch.",
    keep_quota: (quota) => `Dieser Browser gibt der Seite ${quota}; was darüber liegt, wird bei Bedarf neu geladen.`,
    keeps: (held, resident, in_memory) => `Hält ${experten(held)} auf der Platte, ${whole.format(resident)} auf der `
      + `GPU, ${in_memory} im Speicher dieses Rechners.`,
    power: "Leistung",
    power_all: "Der Hub fragt, so oft er mag. Am Netz bleibt die GPU wach, solange ein Text entsteht.",
    power_part: (percent) => `Der Hub fragt diesen Tab etwa ${percent}-mal, wo er sonst 100-mal fragte.`,
    nickname: "Name für den Gastgeber (freiwillig)",
    gpu: "GPU",
    gpu_later: "steht nach dem Start hier",
    how_fast: "Wie schnell ist sie?",
    cpu_only: (threads) => `keine: es rechnet der Prozessor (${threads}).`,
    software_gpu: " (Software: langsam, für Tests)",
    speed: "Tempo",
    in_use: "Belegt",
    memory_parts: (used, limit, weights) =>
      `${used} von ${limit}: ${weights} Experten, der Rest für Aufrufe und weitere Experten`,
    model: "Modell",
    status_page: "Statusseite",
    listed_as: (name) => `steht dort als ${name}`,
    stored: "Hier gespeichert",
    unknown: "unbekannt",
    stored_of: (used, quota) => `${used} von ${quota}, die dieser Browser der Seite gibt`,
    store_stays: "Der Browser behält, was gespeichert ist, bis du es vergisst.",
    store_may_go: "Der Browser hat nicht versprochen zu behalten, was gespeichert ist: wird die Platte knapp, darf er "
      + "es löschen.",
    store_full: (n) => "Auf der Platte ist kein Platz mehr: "
      + `${n === 1 ? "1 Experte ist nicht gespeichert und wird" : `${experten(n)} sind nicht gespeichert und werden`} `
      + "bei Bedarf neu geladen.",
    store_device: (size) => `Das Modell für „dieses Gerät“ belegt davon ${size} und bleibt.`,
    store_made_room: (n) => `${count(n, "gespeicherter Experte hat", "gespeicherte Experten haben")} anderen Platz `
      + "gemacht.",
    store_damaged: (n) => `${count(n, "gespeicherter Experte war", "gespeicherte Experten waren")} beschädigt, neu `
      + "geladen und nie benutzt.",
    store_gone: (n) => `${count(n, "gespeicherter Experte war", "gespeicherte Experten waren")} von der Platte `
      + "verschwunden und neu geladen.",
    no_values: "Dieser Browser speichert keine Einstellungen für diese Seite: Name, Grenzen und Regeln gelten, bis sie "
      + "geschlossen wird.",
    store_failed: (why) => `Experten ließen sich nicht speichern (${why}): der nächste Besuch lädt sie neu.`,

    rules: "Wann er arbeiten darf",
    metered: "Diese Leitung wird wohl nach Menge bezahlt. Allein die Gewichte eines großen Modells sind Gigabytes: "
      + "setze "
      + "zuerst eine Grenze für den Tag.",
    mains: "Nur am Stromnetz, nicht mit Akku",
    hidden: "Nur während ein anderer Tab oder ein anderes Fenster vorn ist",
    idle: "Nur während niemand diesen Computer benutzt",
    awake: "Bildschirm anlassen, solange er arbeitet",
    again: "Von selbst starten, wenn diese Seite neu geladen wird",
    from: "Von",
    to: "Bis",
    any: "immer",
    data: "Daten pro Tag, GB",
    no_limit: "ohne Grenze",
    used_today: (used) => `heute ${used}`,
    bad_data: "Eine Zahl von Gigabytes wie 2 oder 0.5. Leer heißt: ohne Grenze.",
    on_battery: "Dieses Gerät läuft mit Akku. Am Stromnetz geht es von selbst weiter.",
    outside_hours: (from, to) => `Er arbeitet von ${from} bis ${to} Uhr, wie du es eingestellt hast.`,
    data_used: (cap) => `Die ${cap} für heute sind verbraucht. Morgen geht es von selbst weiter.`,
    in_front: "Er arbeitet, während ein anderer Tab oder ein anderes Fenster vor dieser Seite ist.",
    computer_used: "Er arbeitet, sobald niemand diesen Computer eine Minute lang benutzt hat.",
    in_front_and_used: "Er arbeitet, während ein anderer Tab oder ein anderes Fenster vorn ist, oder sobald niemand "
      + "diesen Computer eine Minute lang benutzt hat.",
    idle_unknown: "Dieser Browser durfte nicht sagen, ob jemand diesen Computer benutzt. Erlaube es dieser Seite, "
      + "oder nimm die Regel zurück.",

    hub: (model, workers, missing) => {
      const who = workers === 0 ? "Noch leiht ihm niemand eine GPU"
        : `${count(workers, "Helfer ist", "Helfer sind")} hier`;
      const need = missing > 0 ? `, und ${count(missing, "Experte hat", "Experten haben")} niemanden` : "";
      return `Dieser Hub bietet ${model} an. ${who}${need}.`;
    },
    gap: (missing, computes_itself) => (missing > 0
      ? `${count(missing, "Experte liegt", "Experten liegen")} bei ${computes_itself ? "keinem Helfer" : "niemandem"}`
      : "Jeder Experte liegt bei jemandem"),
    not_scarce: "; jeder ist so oft da, wie der Gastgeber es will.",
    second_copies: (layers) => `; eine weitere Kopie fehlt am meisten in `
      + `${layers.length === 1 ? "Schicht" : "den Schichten"} `
      + `${layers.map((layer) => whole.format(layer)).join(", ")}.`,
    scarce: (layers) => `; am meisten fehlt in ${layers.length === 1 ? "Schicht" : "den Schichten"} `
      + `${layers.map((layer) => whole.format(layer)).join(", ")}.`,
    gigabyte_all: "Ein Gigabyte hier hält das ganze Modell.",
    gigabyte: (room, units) => `Ein Gigabyte hier hält ${experten(room)} von ${whole.format(units)}.`,
    one_takes: (size) => `Einer braucht ${size}.`,

    work: "Deine Arbeit hier",
    work_none: "Dieser Hub kann zählen, was du leihst, über alle deine Tabs und Rechner. Dazu braucht es eine "
      + "Identität: "
      + "einen Schlüssel, der in diesem Browser entsteht und hier bleibt. Der Hub sieht seine öffentliche Hälfte, "
      + "andere "
      + "sehen nur die Zahl.",
    work_share: "der Arbeit von heute",
    work_total: "Expertenaufrufe insgesamt",
    work_rank: "Rang",
    work_streak: "in Folge",
    days: (n) => count(n, "Tag", "Tage"),
    rank: (rank, of) => `${rank} von ${of}`,
    not_verified: "Dieser Hub rechnet keine Antworten nach, darum ist nichts davon geprüft.",
    verified: (percent) => `${percent} % davon gelten als geprüft: der Hub rechnet manche Antworten nach.`,
    spark: (days) => `Expertenaufrufe an jedem der letzten 30 Tage; ${count(days, "Tag", "Tage")} mit Arbeit.`,
    shows_name: "Meinen Namen anderen zeigen, die hier leihen",
    keep_count: "Mitzählen",
    take_along: "Mitnehmen",
    bring_one: "Eine herbringen",
    delete: "Löschen",
    identity_file: "Datei mit einer Identität",
    board: "Wer am meisten geliehen hat",
    board_rank: "Rang",
    board_who: "Wer",
    board_calls: "Expertenaufrufe",
    you: "du",
    somebody: "jemand",
    no_ed25519: "Dieser Browser kennt kein Ed25519 und kann keine Identität aufbewahren. Der Tab arbeitet trotzdem, "
      + "ohne "
      + "zu zählen.",
    does_not_sign: (why) => `Dieser Browser unterschreibt nicht: ${why}`,
    export_words: "Die Datei öffnet sich nur mit diesem Kennwort: niemand kann es wiederherstellen.",
    bring: "Herbringen",
    bring_replaces: "Die Identität aus der Datei tritt an die Stelle derjenigen in diesem Browser.",
    bring_words: "Das Kennwort, mit dem die Datei geschrieben wurde.",
    drop: "Löschen?",
    drop_words: "Der Hub löscht seine Zählung und dieser Browser den Schlüssel. Es gibt keinen Weg zurück.",
    not_forgotten: (why) => `Der Hub hat sie nicht vergessen: ${why || "er antwortet nicht"}.`,
    no_identity: "Das ist keine Identität von MoEx.",
    bad_passphrase: "Das Kennwort öffnet diese Datei nicht, oder die Datei ist beschädigt.",
    passphrase: "Kennwort, mindestens 8 Zeichen",
    leave_it: "Lieber nicht",
    go_on: "Weiter",

    know: "Was du wissen solltest",
    know_programs: "Es laufen nur Programme dieser Seite, auf der GPU und im Sandkasten des Browsers; Gewichte "
      + "werden vor "
      + "Gebrauch an ihrem Hash geprüft und bleiben hier, bis du sie löschst oder der Browser den Platz braucht.",
    know_processor: "Ein Browser ohne WebGPU rechnet auf dem Prozessor, in einem Thread; diese Seite sagt es.",
    know_numbers: "Dieser Tab sieht innere Zahlen aus Gesprächen anderer, keinen Text. Sie können dennoch etwas von "
      + "dem "
      + "verraten, was geschrieben wurde: behalte sie für dich.",
    know_power: "Eine arbeitende GPU braucht Strom. Mach jederzeit Pause; der Hub geht ohne dich weiter.",

    forget: "Alles vergessen",
    forget_ask: "Alles vergessen?",
    forget_what: "Gespeicherte Gewichte, das Beitrittszeichen, dein Name, Grenzen und Identität hier, und auf der "
      + "Chatseite die Gespräche, was sich das Gerät davon gemerkt hat, Einstellungen und der API-Schlüssel verlassen "
      + "diesen Browser. Es gibt keinen Weg zurück.",
    keep_it: "Behalten",
  },
};

export const say = sayFrom(table);

// The sentences of the worker's program (web-worker/, English): [pattern, text from its groups]. A sentence that is not
// listed is shown in English.
const details = {
  en: [],
  de: [
    [/^The hub has given this worker no experts yet\.$/, () => "Der Hub hat diesem Tab noch keine Experten gegeben."],
    [/^Serving what is here already; the rest is on its way\.$/,
      () => "Arbeitet mit dem, was schon da ist; der Rest ist unterwegs."],
    [/^This worker serves until others hold its experts, then it stops\.$/,
      () => "Dieser Tab arbeitet, bis andere seine Experten haben, und endet dann."],
    [/^The hub is shutting down\. This worker comes back when it does\.$/,
      () => "Der Hub wird beendet. Dieser Tab kommt wieder, wenn er es tut."],
    [/^The hub is not there\. Trying again\.$/, () => "Der Hub ist nicht da. Neuer Versuch."],
    [/^The hub closed the connection \((.*)\)\. Trying again\.$/s,
      (why) => `Der Hub hat die Verbindung beendet (${why}). Neuer Versuch.`],
    [/^The hub refused this worker(?:: (.*?))?\.( Ask the (?:host|operator) for a fresh join link\.)?$/s,
      (why, fresh) => `Der Hub hat diesen Tab abgelehnt${why ? `: ${why}` : ""}.`
        + `${fresh ? " Bitte den Gastgeber um einen neuen Link." : ""}`],
    [/^This hub has the key (.*); this browser knows (.*)\. It is another hub, .*$/s,
      (key, known) => `Dieser Hub hat den Schlüssel ${key}; dieser Browser kennt ${known}. Es ist ein anderer Hub, `
        + "oder sein Betreiber hat einen neuen Schlüssel gemacht: frag nach und vergleiche."],
    [/^This hub signs nothing; this browser knows its key (.*)\.$/s,
      (known) => `Dieser Hub unterschreibt nichts; dieser Browser kennt seinen Schlüssel ${known}.`],
    [/^The hub's signature does not fit its key\.$/,
      () => "Die Unterschrift des Hubs passt nicht zu seinem Schlüssel."],
    [/^The hub's signature cannot be read\.$/, () => "Die Unterschrift des Hubs ist nicht zu lesen."],
    [/^The hub reports (.*)$/s, (what) => `Der Hub meldet ${what}`],
    [/^The GPU was lost \((.*)\)\. Starting again(?:, try (\d+) of (\d+))?\.$/s,
      (why, attempt, of) => `Die GPU ging verloren (${why}). Neuer `
        + `Anfang${attempt ? `, Versuch ${attempt} von ${of}` : ""}.`],
    [/^The GPU was lost \((.*)\)\. Starting again with at most (\d+) MB\.$/s,
      (why, size) => `Die GPU ging verloren (${why}). Neuer Anfang mit höchstens ${size} MB.`],
    [/^This GPU fails again and again \((.*)\); it was opened anew (\d+) times\..*$/s,
      (why, times) => `Diese GPU fällt immer wieder aus (${why}); sie wurde ${times}-mal neu geöffnet. Ein Neustart `
        + "oder ein "
        + "neuerer Grafiktreiber mag helfen."],
    [/^This GPU cannot run the expert kernels: (.*)$/s,
      (why) => `Diese GPU kann die Programme der Experten nicht ausführen: ${why}`],
    [/^This GPU computes wrong results \(error (.*), at most (.*) is allowed\)\..*$/s,
      (error, most) => `Diese GPU rechnet falsch (Fehler ${error}, erlaubt sind ${most}). Ein neuerer Treiber mag `
        + "helfen; "
        + "bis dahin macht sie nicht mit."],
    [/^An expert could not be fetched and is tried again: (.*)$/s,
      (why) => `Ein Experte ließ sich nicht holen und wird noch einmal versucht: ${why}`],
    [/^One expert of this model takes (.*), this GPU takes at most (.*) in one piece\.$/s,
      (size, most) => `Ein Experte dieses Modells braucht ${size}, diese GPU nimmt höchstens ${most} am Stück.`],
    [/^The memory limit of (.*) has no room for one expert of this model, which takes (.*)\. Raise .*$/s,
      (limit, size) => `Die Speichergrenze von ${limit} hat keinen Platz für einen Experten dieses Modells, der `
        + `${size} `
        + "braucht. Hebe sie an und starte noch einmal."],
    [/^WebGPU needs a secure page: .*$/s,
      () => "WebGPU braucht eine sichere Seite: öffne diesen Link über https oder als http://localhost auf dem "
        + "Rechner des "
        + "Hubs"],
    [/^This browser has no WebGPU\..*$/s,
      () => "Dieser Browser hat kein WebGPU. Nimm ein aktuelles Chrome, Edge, Firefox oder Safari mit eingeschalteter "
        + "Hardwarebeschleunigung"],
    [/^WebGPU found no usable GPU\..*$/s,
      () => "WebGPU fand keine brauchbare GPU. Schalte die Hardwarebeschleunigung des Browsers ein oder erneuere den "
        + "Grafiktreiber"],
  ],
};

export function detailWords(detail) {
  for (const [pattern, words] of details[language()]) {
    const hit = pattern.exec(detail ?? "");
    if (hit) return words(...hit.slice(1));
  }
  return detail ?? "";
}
