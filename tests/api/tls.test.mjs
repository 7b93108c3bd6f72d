// Tests of the hub over TLS with certificates of `moex-hub cert`: versions, names, reload.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { request } from 'node:https';
import { networkInterfaces } from 'node:os';
import { test } from 'node:test';
import { connect } from 'node:tls';
import { inFolder, runHub, startHub } from './hub_process.mjs';

// Calls the function `story` with a hub that has a new certificate, the certificate's folder and the hub's port.
const withTlsHub = (story) => inFolder(async (folder) => {
  const made = await runHub(['cert', '--out', folder, '--host', 'hub.example']);
  assert.equal(made.code, 0, made.stderr);

  const hub = await startHub([
    '--backend', 'local', '--tls-cert', `${folder}/cert.pem`, '--tls-key', `${folder}/key.pem`,
  ]);
  try {
    await story(hub, folder, Number(new URL(hub.url).port));
  } finally { assert.equal(await hub.stop(), 0, hub.stderr()); }
});

// Sends a request to the loopback address under a name; the certificate is checked with `ca` against that name.
function ask(port, name, { ca, path = '/api/info', method = 'GET', headers = {}, body, onData = () => {} } = {}) {
  return new Promise((resolve, reject) => {
    const sent = request({
      host: '127.0.0.1', port, path, method, agent: false,
      servername: /[:\d]$/.test(name) ? '' : name,
      ...(ca ? { ca } : { rejectUnauthorized: false }),
      headers: { Host: `${name.includes(':') ? `[${name}]` : name}:${port}`, ...headers },
    }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (piece) => { text += piece; onData(text); });
      response.on('end', () => resolve({
        status: response.statusCode, headers: response.headers, text,
        certificate: response.socket.getPeerCertificate().fingerprint256,
      }));
      response.on('error', reject);
    });
    sent.on('error', reject);
    sent.end(body);
  });
}

test('TLS 1.0 and 1.1 are refused, 1.2 and 1.3 are spoken', async () => {
  await withTlsHub(async (hub, folder, port) => {
    const speak = (version) => new Promise((resolve) => {
      const socket = connect({
        host: '127.0.0.1', port, rejectUnauthorized: false, minVersion: version, maxVersion: version,
        ciphers: 'DEFAULT:@SECLEVEL=0',
      }, () => {
        resolve(socket.getProtocol());
        socket.destroy();
      });
      socket.on('error', (error) => resolve(error.code));
    });

    const refused = 'ERR_SSL_TLSV1_ALERT_PROTOCOL_VERSION';
    for (const version of ['TLSv1', 'TLSv1.1']) assert.equal(await speak(version), refused);
    for (const version of ['TLSv1.2', 'TLSv1.3']) assert.equal(await speak(version), version);
  });
});

test('the names of the certificate are names of the hub, and no others', async () => {
  await withTlsHub(async (hub, folder, port) => {
    const ca = readFileSync(`${folder}/cert.pem`);
    const good = await ask(port, 'hub.example', { ca });
    assert.equal(good.status, 200, 'without --host');
    assert.match(good.headers['strict-transport-security'], /max-age/);

    const outward = Object.values(networkInterfaces()).flat()
      .filter((one) => !one.internal && !one.address.startsWith('fe80'));
    for (const { address } of outward)
      assert.equal((await ask(port, address)).status, 200, `${address} is in the certificate`);
    assert.equal((await ask(port, 'evil.example')).status, 403);

    const from = async (origin) => (await ask(port, 'hub.example', { headers: { Origin: origin } })).status;
    assert.equal(await from(`http://hub.example:${port}`), 403, 'a plain page is not our own');
    assert.equal(await from(`https://hub.example:${port}`), 200);
  });
});

test('SIGHUP takes a new certificate; a stream in progress goes on', async () => {
  await withTlsHub(async (hub, folder, port) => {
    const before = await ask(port, 'hub.example');
    const renew = async () => {
      const made = await runHub(['cert', '--out', folder, '--host', 'hub.example', '--force']);
      assert.equal(made.code, 0, made.stderr);
      hub.signal('SIGHUP');
    };

    let renewed;
    const stream = await ask(port, 'hub.example', {
      path: '/v1/completions', method: 'POST', headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({
        prompt: 'The sea was', max_tokens: 64, temperature: 0, stream: true, logit_bias: { 8189: -100, 8191: -100 },
      }),
      onData: () => { renewed ??= renew(); },
    });
    assert.match(stream.text, /data: \[DONE\]/);
    await renewed;
    await hub.logged('certificate read again');

    const after = await ask(port, 'hub.example', { ca: readFileSync(`${folder}/cert.pem`) });
    assert.equal(after.status, 200);
    assert.notEqual(after.certificate, before.certificate);
  });
});
