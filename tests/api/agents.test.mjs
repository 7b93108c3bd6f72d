// The shapes of what five agents send first (tests/golden/agents) are answered. live_agents.mjs runs the programs.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { agentPackage } from './agent_package.mjs';
import { inFolder, startHub } from './hub_process.mjs';

const limits = { '/v1/messages': 'max_tokens', '/v1/responses': 'max_output_tokens',
  '/v1/chat/completions': 'max_tokens' };

test('the first requests of agents are answered', () => inFolder(async (folder) => {
  const hub = await startHub(['--backend', 'local'], {}, agentPackage(join(folder, 'model')));
  try {
    for (const agent of ['claude_code', 'codex', 'qwen_code', 'opencode', 'pi']) {
      const requests = JSON.parse(readFileSync(new URL(`../golden/agents/${agent}.json`, import.meta.url), 'utf8'));
      assert.ok(requests.length > 0, agent);
      for (const { path, body } of requests) {
        const { max_completion_tokens: _, ...asked } = { ...body, [limits[path]]: 32 };
        const answer = await fetch(hub.url + path, { method: 'POST', body: JSON.stringify(asked),
          headers: { 'Content-Type': 'application/json' } });
        const text = await answer.text();
        assert.equal(answer.status, 200, `${agent}: ${text.slice(0, 500)}`);
        assert.equal(answer.headers.get('content-type').startsWith('text/event-stream'), body.stream === true, agent);
        assert.doesNotMatch(text, /"error": ?\{/, agent);
      }
    }
  } finally {
    await hub.stop();
  }
}));
