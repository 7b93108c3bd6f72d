// The place of computation in the settings, "hub" or "this device", and the device's progress.
import { element } from "../dom.js";
import { keep_days } from "../kept_pages.js";
import { deviceWords, rememberingWords } from "./words.js";
import { say } from "../words/chat.js";

// Shows the state of the device and the buttons for it.
export class DevicePanel {
  // `actions`: the handlers of the buttons, {load(), stop(), again(), remember(is_on)}.
  constructor(actions) {
    element("device-load").addEventListener("click", () => actions.load());
    element("device-stop").addEventListener("click", () => actions.stop());
    element("device-again").addEventListener("click", () => actions.again());
    element("remember-yes").addEventListener("click", () => actions.remember(true));
    element("remember-no").addEventListener("click", () => actions.remember(false));
  }

  // Shows `state`, which is the state of a ThisDevice (chat/device.js). `place`: the chosen place.
  draw(state, place) {
    const { phase, done_bytes = 0, all_bytes = 0 } = state;
    const is_loading = phase === "fetching" || phase === "warming";
    element("device-box").hidden = phase === "off";
    element("device-kept").hidden = true;
    element("device-form-hint").hidden = phase === "off";
    element("device-words").textContent = deviceWords(state, place);
    element("device-words").className = phase === "failed" ? "problem" : "muted small";
    const progress = element("device-progress");
    progress.hidden = !is_loading;
    progress.max = Math.max(1, all_bytes);
    progress.value = done_bytes;
    progress.setAttribute("aria-label", say("device_progress"));
    element("device-load").hidden = phase !== "asking";
    element("device-load").textContent = say("device_load", state.missing_bytes ?? 0);
    element("device-stop").hidden = !is_loading;
    element("device-again").hidden = phase !== "failed";
  }

  // Shows whether conversations are remembered, or asks. `choice`: of chat/remembering.js; `pages`: the last report of
  // the kept pages, or null; `num`: of how many conversations something is kept, or null.
  drawRemembering(choice, pages, phase, num) {
    element("remember-box").hidden = !["fetching", "warming", "ready"].includes(phase);
    element("remember-words").textContent = rememberingWords(choice, pages, keep_days, num);
    element("remember-words").className = pages?.trouble ? "problem" : "muted small";
    element("remember-yes").hidden = choice === "yes";
    element("remember-no").hidden = choice === "no";
    element("remember-no").textContent = say(choice === "yes" ? "remember_stop" : "remember_no");
  }

  // Shows the note that the page can be opened without the hub if `is_kept`, else hides it.
  tellKept(is_kept) { element("device-kept").hidden = !is_kept; }

  // Focuses the control that the user has to use before an answer is possible.
  focus() {
    const next = ["device-load", "device-again", "device-stop"].map(element).find((node) => !node.hidden);
    return next ?? element("place");
  }
}
