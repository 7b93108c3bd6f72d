// Streamed answers of a hub, and the tables of its commands.
import { request } from 'node:http';

// A bias that forbids the end tokens: an answer ends only by its length.
export const endless = { logit_bias: { 8189: -100, 8191: -100 } };

// The rows of a CSV of the hub, as objects.
export const rowsOf = (csv) => {
  const [head, ...lines] = csv.trimEnd().split('\r\n');
  return lines.map((line) => Object.fromEntries(head.split(',').map((name, i) => [name, line.split(',')[i]])));
};

// Reads a streamed answer, and adds the arrival time of each token to the list `received`. Resolves when the stream has
// ended, in any way.
export function readStream(url, body, received, key) {
  const ended = new Promise((resolve) => {
    const headers = { 'content-type': 'application/json', ...(key ? { authorization: `Bearer ${key}` } : {}) };
    const call = request(url, { method: 'POST', headers }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (piece) => {
        text += piece;
        for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
          const event = text.slice(0, end);
          text = text.slice(end + 2);
          if (!event.startsWith('data: {')) continue;
          // The event of an error has no choices.
          const tokens = JSON.parse(event.slice(6)).choices?.[0]?.logprobs?.tokens ?? [];
          for (let i = 0; i < tokens.length; ++i) received.push(Date.now());
        }
      });
      response.on('error', resolve).on('close', resolve);
    });
    call.on('error', resolve);
    call.end(JSON.stringify(body));
  });
  return ended;
}
