// The Agent SDK for TypeScript, as a harness has it: one question, its answer as JSON lines.
//
//     node agent_sdk.mjs SDK CLAUDE CWD PROMPT [RESUME]
//
// An end of stdin aborts what is under way.

const [sdk, claude, cwd, prompt, resume] = process.argv.slice(2);
const { query } = await import(sdk);
const abortController = new AbortController();
process.stdin.on("end", () => abortController.abort()).resume();

const options = { cwd, abortController, pathToClaudeCodeExecutable: claude };
options.canUseTool = async (tool, updatedInput) => {
  console.log(JSON.stringify({ type: "asked", tool }));
  return { behavior: "allow", updatedInput };
};
if (resume) options.resume = resume;
async function* prompts() {
  yield { type: "user", message: { role: "user", content: prompt }, parent_tool_use_id: null };
  await new Promise((resolve) => (answered = resolve));
}
let answered;
try {
  for await (const message of query({ prompt: prompts(), options })) {
    console.log(JSON.stringify(message));
    if (message.type === "result") answered();
  }
} catch (error) {
  console.log(JSON.stringify({ type: "failed", error: error.message }));
}
process.exit();
