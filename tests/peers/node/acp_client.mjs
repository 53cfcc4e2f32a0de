// An ACP client as editors have one, which does what it is told, line by line:
//
//     node acp_client.mjs SDK CWD AGENT ARGS…
//
// On stdin   {"id": 1, "method": "prompt", "params": {…}}   a method of the client's connection
//            {"close": true}                                the agent's stdin
//            {"signal": "SIGKILL"}                          for the agent's process
// On stdout  {"id": 1, "result": {…}} or {"id": 1, "error": "…"}
//            {"update": {…}}, {"permission": {…}}           what the agent sent; it is allowed once
//            {"exit": {"code": 0, "signal": null}}          the end of it

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { Readable, Writable } from "node:stream";

const [sdk, cwd, program, ...args] = process.argv.slice(2);
const { ClientSideConnection, ndJsonStream } = await import(sdk);

function tell(message) {
  process.stdout.write(JSON.stringify(message) + "\n");
}

const client = {
  async sessionUpdate({ update }) {
    tell({ update });
  },
  async requestPermission({ toolCall, options }) {
    tell({ permission: toolCall });
    const { optionId } = options.find(({ kind }) => kind === "allow_once");
    return { outcome: { outcome: "selected", optionId } };
  },
  async extNotification() {},
};

const agent = spawn(program, args, { cwd, stdio: ["pipe", "pipe", "inherit"] });
agent.on("error", (error) => tell({ exit: { error: error.message } }));
agent.on("close", (code, signal) => tell({ exit: { code, signal } }));
const stream = ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
const connection = new ClientSideConnection(() => client, stream);

function carryOut({ id, method, params }) {
  connection[method](params).then(
    (result) => tell({ id, result: result ?? null }),
    (error) => tell({ id, error: `${error.message} ${JSON.stringify(error.data ?? null)}` }),
  );
}

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.signal) {
    agent.kill(order.signal);
  } else if (order.close) {
    agent.stdin.end();
  } else {
    carryOut(order); // not awaited: a cancel must overtake the prompt it is for
  }
}
