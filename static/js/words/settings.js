// The help of each setting on the operator page in other languages, by the setting's name. The English help is the
// hub's own text (hub/options/options_table.cpp). A new setting in that table needs an entry in this file.
import { language } from "../language.js";

const translations = {
  de: {
    // Adresse und Schlüssel
    listen: "HTTP und WebSocket; Port 0 nimmt einen freien Port",
    "tls-cert": "Zertifikatskette (PEM); mit --tls-key spricht der Hub HTTPS",
    "tls-key": "privater Schlüssel (PEM) zu --tls-cert",
    "insecure-http": "erlaubt eine Adresse über diese Maschine hinaus ohne TLS; Tabs brauchen dann einen Proxy mit "
      + "TLS, denn WebGPU gibt es nur auf sicheren Seiten",
    "require-key": "verlangt auch auf dieser Maschine einen API-Schlüssel",
    "api-key-file": "die erste Zeile ist ein weiterer API-Schlüssel; oder MOEX_API_KEY enthält ihn",
    "admin-key-file": "die erste Zeile ist ein weiterer Admin-Schlüssel; oder MOEX_ADMIN_KEY enthält ihn",
    "api-key": "ein weiterer API-Schlüssel",
    "admin-key": "ein weiterer Admin-Schlüssel",
    host: "weiterer Name dieses Hubs, mehrfach möglich; der Host-Header darf ihn enthalten, und `cert` schreibt ihn in "
      + "das Zertifikat; die Namen des Zertifikats gelten auch",
    "cors-origin": "Webseite, die die API aufrufen darf; mehrfach möglich",
    "trusted-proxy": "Reverse Proxy, dessen Header X-Forwarded-For und X-Forwarded-Proto gelten, mehrfach möglich; "
      + "API-Schlüssel werden dann auch auf dieser Maschine verlangt",
    user: "als root gestartet: der Benutzer, zu dem der Hub wird, sobald der Port gebunden ist",
    state: "Schlüssel, Zähler, Zertifikat (0700); sonst $XDG_STATE_HOME/moex",
    store: "PostgreSQL, das mehrere Hubs teilen: postgresql://HOST/DB\n"
      + "dort stehen Schlüssel, Sperren, Zähler und das Join-Token; das Passwort kommt aus PGPASSFILE "
      + "oder PGPASSWORD; außerhalb dieses Rechners prüft TLS den Host",
    "fleet-key": "Datei mit dem Schlüssel, den die Hubs von --store teilen: stirbt ein Hub, setzt ein anderer seine "
      + "Antworten fort; `moex-hub fleet key DATEI` legt ihn an; Anfragen und Tokens laufender Antworten liegen damit "
      + "verschlüsselt im Speicher der Hubs",
    static: "Seiten aus einem Ordner statt der eingebauten (für die Arbeit an den Seiten)",
    "connections-max": "offene Verbindungen",
    "connections-per-address": "offene Verbindungen von einer IPv4-Adresse oder einem IPv6-/64",
    "request-memory-mb": "Speicher für Anfragen, die gerade gelesen werden, über alle Verbindungen; darüber 503",
    "text-mb-per-minute": "Grenze für die Anfragen, die eine Adresse in einer Minute senden darf, darüber 429; ein "
      + "Viertel davon auf einmal; ein Schlüssel darf doppelt so viel",
    "net-threads": "Threads für Verbindungen",
    "drain-s": "nach SIGTERM: die Zeit, die laufende Antworten noch haben",
    qr: "druckt den QR-Code des Links zum Mitmachen, auch wenn stdout kein Terminal ist",

    // Modell und Speicher
    model: "ein Paket, das `moex-hub pack` gemacht hat; sonst static/models/demo",
    context: "längste Frage samt Antwort; 0: die des Modells",
    "sequences-max": "Antworten, die zugleich laufen",
    "queue-max": "Antworten, die warten; darüber 429",
    "kv-mb": "Speicher für den KV-Cache; 0: ein Viertel dessen, was beim Start frei ist",
    "state-mb": "Teil von --kv-mb für Kopien rekurrenter Zustände, von denen gleich beginnende Fragen weitergehen "
      + "(Qwen3-Next, Qwen3.5, Qwen3.6); 0: ein Viertel",
    "kv-dtype": "Datentyp des KV-Cache; f16 hat die Hälfte der Bytes von f32, int8 etwas mehr als ein Viertel; auto: "
      + "f32 in genauer Arithmetik, sonst f16",
    "prefix-cache": "behält die KV-Seiten einer Frage für die nächste Frage desselben Clients, innerhalb von --kv-mb",
    "kv-disk-mb": "behält die KV-Seiten von Fragen und Antworten verschlüsselt auf der Platte, für die nächste Frage "
      + "desselben Clients, auch nach einem Neustart; 0: keine; auto: ein Zehntel der freien Platte, höchstens 8192, "
      + "wenn der Hub nur auf Loopback lauscht und keinem Proxy vertraut, sonst keine; `moex-hub forget` löscht sie; "
      + "eine Anfrage mit \"moex\": {\"store\": false} hinterlässt keine",
    "kv-disk-hours": "nach so vielen Stunden werden Seiten auf der Platte gelöscht",
    "kv-key-file": "die erste Zeile verschlüsselt die Seiten auf der Platte: 64 hexadezimale Ziffern; sonst gilt das "
      + "systemd-Credential moex-kv-key, oder die Datei kv-key im Zustandsordner, die angelegt wird; ein Schlüssel im "
      + "Zustandsordner schützt nichts, wenn der ganze Ordner kopiert wird",
    gpu: "Attention, Router und LM-Kopf auf einer GPU dieser Maschine, über Vulkan; mit generate und mit --backend "
      + "local rechnet sie auch die Experten, außer mit --deterministic; auto nimmt eine echte GPU, und ohne sie den "
      + "Prozessor; NAME ist eine Nummer oder ein Teil eines Gerätenamens (llvmpipe ist Software); Keys und Values "
      + "werden auf der GPU gespeichert: --kv-mb, oder was passt",
    "gpu-mb": "höchstens so viel Speicher der GPU; 0: was frei ist",
    "gpu-awake": "die GPU rechnet weiter, während sie auf Helfer wartet, damit ihr Takt oben bleibt; auf einer H200 "
      + "dauert eine Schicht so ein Drittel; auto: solange kein anderes Programm Speicher der GPU hält, und nicht im "
      + "Akkubetrieb",
    "device-model": "ein kleineres Modell für Browser, die auf dem eigenen Gerät antworten; sonst das Modell des Hubs",
    "give-model": "Browser dürfen das ganze Modell laden und auf dem eigenen Gerät antworten; ein Browser braucht das "
      + "Recht, die API zu nutzen",
    "any-model-name": "beantwortet Anfragen nach jedem Modellnamen mit dem Modell dieses Hubs",
    "max-tokens-default": "Länge einer Antwort, wo eine Anfrage keine nennt; 0: bis zum Ende des Kontexts",
    deterministic: "derselbe Text, welche Helfer auch antworten; Rundung und Reihenfolge der Summen sind dann fest",
    threads: "Threads, die rechnen; 0: einer je Kern; serve lässt dann ein Achtel der Kerne den Verbindungen",
    arithmetic: "Arithmetik der Matrizen dieser Maschine; exact: f32; int8: Aktivierungen und Gewichte des Hubs in 8 "
      + "Bit, etwa doppelt so schnell; auto: int8 bei INT4-Experten, exact bei anderen und mit --deterministic",
    "hub-dtype": "Datentyp der Attention und der dichten Matrizen in int8-Arithmetik; int4 hat die wenigsten Bytes je "
      + "Token und ist am ungenauesten, der LM-Kopf hat dann 6 Bit; auto: wie das Paket sie hat, int6 wo sie bf16 "
      + "sind; bei pack und synth: was das Paket enthält, nie int6; auto: bf16, und f32, "
      + "wo bf16 Bits des Checkpoints verlöre",
    "step-stretch": "während eine Frage gelesen wird, dauert ein Schritt der Antworten höchstens etwa X-mal so lang; "
      + "mit größerem X werden Fragen schneller gelesen, und Antworten daneben stocken",
    speculative: "spekulatives Dekodieren: rechnet entworfene Token neben dem letzten eines Textes; der Text ist "
      + "derselbe, und jedes richtig entworfene Token spart seine Wege zu den Helfern; auto: so viele, wie die meisten "
      + "Token je Sekunde geben, im Betrieb gemessen; N: immer N, bis zu 16",
    draft: "ein kleineres Modell, das Token entwirft, neben dem, was der Text selbst wiederholt: ein Paket mit "
      + "demselben Vokabular oder ein Schatten des Modells (`pack --shadow`)",
    "micro-batches": "zerlegt die Zeilen eines Schritts in N Teile, bis zu 4; diese Maschine rechnet einen Teil, "
      + "während Helfer eine Schicht eines anderen rechnen, der Text ist derselbe; auto: die Zahl, mit der Schritte am "
      + "schnellsten sind, im Betrieb gemessen, bis zu --queue-depth",

    // Helfer
    backend: "swarm: Tabs und Helfer rechnen die Experten; local: diese Maschine; ein dichtes Modell rechnet diese "
      + "Maschine immer allein",
    "local-fallback": "rechnet hier, was kein Helfer rechtzeitig beantwortet",
    "own-layers": "Schichten, deren Experten nur diese Maschine rechnet: die ersten N - 1 und die letzte; mit "
      + "--local-fallback off braucht sie nur für diese Experten Speicher, und Helfer rechnen die anderen",
    "use-workers": "wann Helfer gefragt werden, wenn diese Maschine die Experten selbst rechnen kann; auto: wer nach "
      + "Messung antwortet, bevor diese Maschine fertig wäre, die anderen stehen in Reserve; always: Helfer rechnen "
      + "alles, was sie halten",
    "spans": "Helfer, deren Speicher dafür reicht, rechnen mehrere aufeinanderfolgende Schichten ganz, so dass ein "
      + "Token für sie nur einen Weg braucht; auto: wo das nach Messung schneller ist, die ersten zwei Schichten und "
      + "die letzte rechnet diese Maschine; ein solcher Helfer sieht Zeilen und Schlüssel seiner Schichten; nicht mit "
      + "--deterministic oder --give-model off",
    "check-answers": "rechnet Antworten nach, um falsche zu finden, und sperrt deren Helfer; alle Antworten eines "
      + "neuen Helfers werden geprüft, von bewährten ein Teil; braucht die Gewichte der Experten auf dieser Maschine",
    replicas: "Helfer, die jeden Experten halten",
    experts: "exact oder ein verlustbehafteter Modus, speculative oder estimator, für Antworten, deren Anfrage keinen "
      + "wählt (moex.experts); speculative: die Aufrufe jeder zweiten Schicht gehen ab, bevor die Antworten der "
      + "Schicht davor da sind, mit mittleren Vektoren an ihrer Stelle, die Demo hat dann 5 von 8 Runden; estimator: "
      + "ein kleines gelerntes Netz wählt die Experten einer Schicht eine Schicht vorher, sodass Helfer, die Experten "
      + "auf Abruf laden, früher beginnen, das Paket braucht dafür `train-estimator`",
    prefetch: "off, on, N oder shadow:DIR: sagt voraus, welche Experten Helfer laden werden, die mehr halten, als in "
      + "ihren Speicher passen; N: so viele Experten je Token und Schicht; on: so viele, wie ein Token braucht; "
      + "shadow:DIR: ein gröber gerundeter Entwurf des Modells (`pack --shadow`) läuft auf freien Kernen voraus und "
      + "sagt die nächsten Experten vorher",
    "prefetch-by": "was bei --prefetch vorhersagt; next-gate: der Router der nächsten Schicht liest die Eingabe dieser "
      + "Schicht; quasi-hidden: dasselbe mit mittleren Antworten für ausstehende; estimator: ein kleines "
      + "gelerntes Netz, nicht mit --gpu; auto: das beste, für das das Paket die Dateien hat, mit --gpu next-gate",
    placement: "Regel, nach der Helfer einen Experten halten; fan-out: wenige Helfer je Schicht; hash: jeder Experte "
      + "für sich; „groups N“: N Gruppen von Helfern rechnen die Schichten reihum, sodass eine Gruppe Experten auf "
      + "Abruf lädt, während andere rechnen; Vorhersagen gehen dann N Schichten voraus",
    "hot-copies": "Prozent der Experten, die eine Kopie mehr als --replicas haben, 0: keiner; es sind die, die am "
      + "meisten oder bald gefragt werden, wo Helfer Platz haben",
    hedge: "schickt einen Aufruf an einen zweiten Helfer; delayed: wenn der erste länger braucht als 96 von 100 "
      + "Aufrufen, bei höchstens 5 % aller Aufrufe und 5 je Sekunde; „fixed H“: H Fassungen jedes Aufrufs zugleich; "
      + "adaptive: zwei, solange der Schwarm langsam ist; off: nie",
    "timeout-ms": "längste Zeit für einen Versuch bei einem Helfer; darunter passt die Frist sich an",
    "round-deadline-s": "eine Schicht ohne Antwort, die auch hier nicht gerechnet wird, beendet die Anfrage nach "
      + "dieser Zeit",
    "holder-wait-s": "wenn hier nicht gerechnet wird: wartet auf einen Experten, den vor einer Minute ein Helfer hielt "
      + "oder lud",
    "holder-wait-unseen-s": "dasselbe für einen Experten, den kein Helfer hielt; dann endet die Anfrage",
    "late-calls-max": "Expertenaufrufe einer Antwort, die eine Anfrage auslassen darf (verlustbehaftet), 0: keine; die "
      + "Anfrage nennt eine Frist (moex.late_ms, late_max), mittlere Vektoren ersetzen spätere Antworten",
    "workers-per-address": "Helfer von einer IPv4-Adresse oder einem IPv6-/64",
    "wire-dtype": "Datentyp der Aktivierungen in Nachrichten",
    "wire-x": "Datentyp der Zeilen, die an einen Helfer gehen; int8: halb so viele Bytes wie f16, mit einem Maßstab je "
      + "Zeile, wo der Helfer das annimmt, Antworten f16 sind, und ohne --deterministic; wire: wie --wire-dtype",
    "queue-depth": "Gruppen, die je Helfer unterwegs sind",
    lz4: "packt Nachrichten, wo sie dadurch kleiner werden",
    spin: "Threads, die auf Helfer warten, fragen bis zu einer Millisekunde lang nach, bevor sie schlafen, solange "
      + "Wartezeiten so kurz sind; auto: mit --gpu, ab acht Kernen",

    // Protokolle
    "log-level": "debug, info, warn oder error; auf stderr",
    "log-json": "ein JSON-Objekt je Zeile des Logs; im Zugriffslog mit der Kennung jeder Anfrage",
    "access-log": "eine Zeile je Antwort, - für stdout; sie enthält keine Inhalte und keine Suchteile, von Schlüsseln "
      + "die öffentlichen Kennungen; SIGHUP öffnet die Datei neu",
    trace: "Zeitspannen jedes Tokens für chrome://tracing und ui.perfetto.dev, höchstens 1 GiB; Schritte und Schichten "
      + "der Maschine, und Runden jedes Helfers",
  },
};

// Returns the help of a setting, as the hub describes it ({name, help}), in the language of the page.
export const helpOf = ({ name, help }) => translations[language()]?.[name] ?? help;
// Returns the names of the settings that have a help text in the language `other`.
export const toldIn = (other) => Object.keys(translations[other] ?? {});
