// An ACP client as editors have one, which does what it is told, line by line:
//
//     node acp_client.mjs SDK CWD AGENT ARGS…
//
// On stdin   {"id": 1, "method": "prompt", "params": {…}}   a method of the client's connection
//            {"close": true}                                the agent's stdin
//            {"signal": "SIGKILL"}                          for the agent's process
// On stdout  {"id": 1, "result": {…}} or {"id": 1, "error": "…"}
//            {"update": {…}}, {"permission": {…}}           what the agent sent; it is allowed once
//            {"asked": "createTerminal", "params": {…}}     what it had the client do on this machine
//            {"exit": {"code": 0, "signal": null}}          the end of it

import { spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { Readable, Writable } from "node:stream";

const [sdk, cwd, program, ...args] = process.argv.slice(2);
const { ClientSideConnection, ndJsonStream } = await import(sdk);

const terminals = new Map();

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
  async readTextFile(params) {
    tell({ asked: "readTextFile", params });
    return { content: await readFile(params.path, "utf8") };
  },
  async writeTextFile(params) {
    tell({ asked: "writeTextFile", params });
    await writeFile(params.path, params.content);
    return {};
  },
  async createTerminal(params) {
    tell({ asked: "createTerminal", params });
    const terminalId = String(terminals.size);
    const ran = spawn(params.command, params.args ?? [], { cwd: params.cwd, shell: !params.args?.length });
    let output = "";
    for (const stream of [ran.stdout, ran.stderr]) stream.on("data", (data) => (output += data));
    const exit = new Promise((resolve) => ran.on("close", (exitCode, signal) => resolve({ exitCode, signal })));
    terminals.set(terminalId, { exit, output: () => output });
    return { terminalId };
  },
  async terminalOutput({ terminalId }) {
    const { exit, output } = terminals.get(terminalId);
    return { exitStatus: await exit, output: output(), truncated: false };
  },
  async waitForTerminalExit({ terminalId }) {
    return await terminals.get(terminalId).exit;
  },
  async releaseTerminal() {
    return {};
  },
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
