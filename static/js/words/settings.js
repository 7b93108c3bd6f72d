// What the settings of a hub do, by their names, in other languages. The English words are the hub's own
// (hub/options/options_table.cpp); a setting that is new there is told in them.
import { language } from "../language.js";

const told = {
  de: {
    model: "ein Paket, das `moex-hub pack` gemacht hat; sonst static/models/demo",
    listen: "HTTP und WebSocket; Port 0 nimmt einen freien",
    "tls-cert": "Zertifikatskette (PEM); mit --tls-key spricht der Hub HTTPS",
    "tls-key": "privater Schlüssel (PEM)",
    "insecure-http": "erlaubt eine Adresse über diese Maschine hinaus ohne TLS (Tabs brauchen dann einen Proxy: "
      + "WebGPU will eine sichere Seite)",
    "require-key": "verlangt auch auf dieser Maschine einen API-Schlüssel",
    "any-model-name": "beantwortet Anfragen nach jedem Modellnamen mit dem Modell, das da ist",
    "give-model": "Browser, die die API nutzen dürfen, dürfen das ganze Modell laden und auf dem eigenen Gerät "
      + "antworten",
    "cors-origin": "Webseite, die die API rufen darf; mehrfach möglich",
    host: "weiterer Name dieses Hubs (Host-Header, Zertifikat); die Namen seines Zertifikats gelten auch; mehrfach "
      + "möglich",
    "trusted-proxy": "Reverse Proxy, dessen X-Forwarded-For und -Proto gelten; dann werden Schlüssel verlangt; "
      + "mehrfach möglich",
    static: "Seiten aus einem Ordner statt der eingebauten (für die Arbeit an ihnen)",
    "workers-per-address": "Helfer von einer IPv4-Adresse oder einem IPv6-/64",
    "connections-max": "offene Verbindungen",
    "connections-per-address": "davon von einer IPv4-Adresse oder einem IPv6-/64",
    "request-memory-mb": "Anfragen, die gerade gelesen werden, aller Verbindungen zusammen; darüber 503",
    "access-log": "eine Zeile je Antwort, - für stdout: keine Inhalte, keine Suchteile, von Schlüsseln die "
      + "öffentlichen Kennungen; SIGHUP öffnet es neu",
    trace: "wo die Zeit der Token bleibt, für chrome://tracing und ui.perfetto.dev: Schritte und Schichten der "
      + "Maschine, Runden jedes Helfers; höchstens 1 GiB",
    "text-mb-per-minute": "Anfragen, die eine Adresse als Text lesen lassen darf, ein Viertel davon auf einmal; ein "
      + "Schlüssel doppelt so viel; darüber 429",
    "drain-s": "nach SIGTERM: so lange dürfen Antworten noch laufen",
    user: "als root gestartet: der Benutzer, der er wird, sobald der Port gebunden ist",
    state: "Schlüssel, Zähler, Zertifikat (0700); sonst $XDG_STATE_HOME/moex",
    "api-key-file": "eine Datei, deren erste Zeile ein weiterer API-Schlüssel ist (Umgebung: MOEX_API_KEY ist der "
      + "Schlüssel selbst)",
    "admin-key-file": "dasselbe für einen Admin-Schlüssel (MOEX_ADMIN_KEY)",
    "api-key": "ein weiterer API-Schlüssel",
    "admin-key": "ein weiterer Admin-Schlüssel",
    qr: "druckt den QR-Code des Links zum Mitmachen, auch wenn stdout kein Terminal ist",
    backend: "swarm: Tabs und Helfer rechnen die Experten; local: diese Maschine allein, wie immer bei einem dichten "
      + "Modell",
    "local-fallback": "rechnet hier, was kein Helfer rechtzeitig beantwortet",
    "check-answers": "rechnet Antworten von Helfern nach: alle der neuen, einen Teil derer, die sich bewährt haben; "
      + "sperrt, wer lügt (braucht die Gewichte der Experten hier)",
    replicas: "Helfer, die jeden Experten halten",
    "hot-copies": "so viele von 100 Experten, die am meisten oder bald gefragt werden, haben eine Kopie mehr als "
      + "--replicas, wo Helfer Platz dafür haben; 0: keiner",
    placement: "welche Helfer einen Experten halten: fan-out, wenige je Schicht; hash, jeder Experte für sich; "
      + "„groups N“: N Gruppen von Helfern übernehmen die Schichten reihum, sodass eine Experten auf Abruf lädt, "
      + "während andere rechnen (Hinweise gehen dann N Schichten voraus)",
    hedge: "delayed: ein zweiter Helfer wird gefragt, wenn der erste länger braucht als 96 von 100, bis 5 % und 5/s; "
      + "„fixed H“: H Fassungen jedes Aufrufs zugleich; adaptive: zwei, solange der Schwarm langsam ist; off: keiner",
    "late-calls-max": "eine Anfrage darf verlangen (moex.late_ms, late_max), dass auf bis zu N Expertenaufrufe ihrer "
      + "Antwort nur eine Zeit lang gewartet wird, mittlere Vektoren an ihrer Stelle: verlustbehaftet; 0: keine darf",
    experts: "der Antworten, deren Anfrage nichts dazu sagt (moex.experts): exact oder ein verlustreicher Weg. "
      + "speculative, auch early:1, schickt die Aufrufe jeder zweiten Schicht los, bevor die letzten Antworten da "
      + "sind, mit Ersatzvektoren an ihrer Stelle: 5 von 8 Runden der Demo, kein Gewinn mit --backend local; "
      + "next-gate, quasi-hidden, estimator und hybrid nennen die Experten einer Schicht eine Schicht vorher "
      + "(+weights: mit den Gewichten ihres Routers; :N: N, aus denen ihr Router wählt), sodass dann schon lädt, wer "
      + "sie lädt; router-free: wie estimator, ohne Router",
    prefetch: "sagt Helfern, die mehr Experten halten, als in ihren Speicher passen, welche davon die nächste Schicht "
      + "verlangen kann; N je Token und Schicht, on: so viele, wie ein Token "
      + "verlangt; shadow:DIR: was ein Schatten des Modells (pack --shadow) sagt, der auf freien Kernen vorausläuft; "
      + "shadow:DIR:N mit N Experten je Token, shadow:served:N mit N der eigenen des Modells; dahinter ,token=T und "
      + ",kv=K: alle so vielen Token das Token und die Schlüssel des Modells (1; 0: nie), ,fetch=M: Experten, die je "
      + "Zeile und Schicht genannt werden, ,ahead=0: er zieht selbst kein Token",
    "prefetch-by": "wer bei --prefetch sagt, was die nächste Schicht verlangen kann (moex-hub predict misst sie): "
      + "auto, der Schätzer (estimator), sonst quasi-hidden, sonst next-gate, je nachdem, was das Paket hat; mit --gpu "
      + "next-gate, denn die Zeilen, die quasi-hidden und estimator lesen, bleiben dort; linear nicht, das predict an "
      + "einen Text anpasst: Pakete haben den Schätzer, der mehr weiß",
    deterministic: "derselbe Text, welche Helfer auch rechnen: feste Rundung und Reihenfolge der Summen",
    "wire-dtype": "Aktivierungen auf der Leitung",
    "wire-x": "Zeilen auf dem Weg zum Helfer: int8, halb so groß wie f16, hier gerundet mit einem Maßstab je Zeile, "
      + "wo der Helfer das nimmt, Antworten f16 sind, und ohne --deterministic; wire: wie --wire-dtype",
    "queue-depth": "Gruppen, die je Helfer unterwegs sind",
    "micro-batches": "die Zeilen eines Schritts werden in N Teile zerlegt, bis zu 4: während Helfer eine Schicht des "
      + "einen rechnen, rechnet dieser Rechner die des nächsten; auto: so viele, wie sie am schnellsten machen, "
      + "unterwegs gemessen, bis zu --queue-depth; der Text ist derselbe",
    lz4: "packt Nachrichten, wo es sich lohnt",
    "timeout-ms": "ein Versuch bei einem Helfer; darunter passt die Frist sich an",
    "round-deadline-s": "eine Schicht ohne Antwort, die auch hier nicht gerechnet wird, beendet die Anfrage",
    "holder-wait-s": "wenn hier nicht gerechnet wird: wartet auf einen Experten, den vor einer Minute ein Helfer "
      + "hielt oder lud",
    "holder-wait-unseen-s": "dasselbe für einen Experten, den niemand hielt: dann endet die Anfrage",
    threads: "Threads, die rechnen; 0: einer je Kern",
    arithmetic: "der Matrizen dieser Maschine: exact (f32); int8 (Aktivierungen und Gewichte des Hubs in 8 Bit, etwa "
      + "doppelt so schnell); auto: int8 bei INT4-Experten, exact bei anderen und mit --deterministic",
    "hub-dtype": "der Attention und der dichten Matrizen in int8-Arithmetik: int8, int6 oder int4 (weniger Bytes je "
      + "Token, ungenauer; der LM-Kopf hat dann auch 6 Bit); auto: wie das Paket sie hat, int6 wo sie bf16 sind. Von "
      + "pack und synth: was das Paket enthält, nie int6; auto: bf16",
    gpu: "auf einer GPU dieser Maschine, über Vulkan: Attention, Router und LM-Kopf; mit generate und mit --backend "
      + "local auch die Experten, außer mit --deterministic. auto nimmt eine echte und bleibt ohne sie auf dem "
      + "Prozessor; NAME ist eine Nummer oder ein Teil eines Gerätenamens (llvmpipe ist Software). Keys und Values "
      + "liegen dort: --kv-mb, oder was passt",
    "gpu-mb": "höchstens so viel Speicher der GPU; 0: was frei ist",
    "gpu-awake": "mit --gpu: sie rechnet weiter, während sie auf Helfer wartet, damit ihr Takt oben bleibt (auf einer "
      + "H200 dauert eine Schicht so ein Drittel); auto: solange niemand sonst Speicher darauf hält, nicht vom Akku",
    "spin": "Threads, die auf Helfer warten, sehen bis zu einer Millisekunde lang nach, bevor sie schlafen, solange "
      + "Wartezeiten so kurz sind; auto: mit --gpu, ab acht Kernen",
    "net-threads": "Threads für Verbindungen",
    "sequences-max": "Antworten, die zugleich laufen",
    "queue-max": "Antworten, die warten; darüber 429",
    "kv-mb": "höchstens so viel Speicher für den KV-Cache; 0: ein Viertel dessen, was beim Start frei ist",
    "kv-dtype": "des KV-Cache: f32; f16, die Hälfte seiner Bytes; int8, etwas mehr als ein Viertel; auto: f32 in "
      + "genauer Arithmetik, sonst f16",
    "prefix-cache": "behält, was von einer Frage gerechnet wurde, für die nächste desselben Fragers, innerhalb von "
      + "--kv-mb",
    "step-stretch": "während eine Frage gelesen wird, dauert ein Schritt der Antworten höchstens etwa X-mal so lang; "
      + "mehr: Fragen werden schneller gelesen, Antworten daneben stocken",
    context: "längste Frage samt Antwort; 0: die des Modells",
    "max-tokens-default": "Länge einer Antwort, wo eine Anfrage keine nennt; 0: so weit der Kontext reicht",
    "log-level": "debug, info, warn oder error; auf stderr",
    "log-json": "ein JSON-Objekt je Zeile des Logs, im Zugriffslog mit der Kennung jeder Anfrage",
  },
};

// Of a setting as the hub describes it.
export const helpOf = ({ name, help }) => told[language()]?.[name] ?? help;
// The names that are told in `other`.
export const toldIn = (other) => Object.keys(told[other] ?? {});
