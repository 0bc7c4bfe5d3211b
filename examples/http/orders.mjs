// Appends an order once, however often it is run; then takes what its group has to do, and says so.
//     node examples/http/orders.mjs http://127.0.0.1:8085
const streams = `${process.argv[2]}/api/v2/streams`;
const headers = { "Content-Type": "application/json", Authorization: `Bearer ${process.env.TOKEN ?? ""}` };

async function post(path, body) {
  const answer = await fetch(streams + path, { method: "POST", headers, body: JSON.stringify(body) });
  const found = await answer.json();
  if (!answer.ok) throw new Error(`${found.code}: ${found.detail}`);
  return found;
}

await post("", { name: "orders", partitions: 2, exist_ok: true });
const { appended } = await post("/orders/records?partition=0&producer=javascript&sequence=0", {
  records: [{ json: { from: "javascript" } }],
});
console.log("duplicate:", appended[0].duplicate);
const { records } = await post("/orders/groups/javascript/records", { member: "one", wait_s: 10 });
for (const record of records) console.log(record.text);
const ids = records.map((record) => record.id);
const { acknowledged } = await post("/orders/groups/javascript/ack", { member: "one", ids });
console.log("acknowledged:", acknowledged);
