import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.UnderreplicatedLedger;

/** The peer's queue of under-replicated ledgers, as its auditor and its workers use it. */
final class PeerQueue {
    private static final long PATIENCE_S = 90;

    private final Map<BookKeeper, LedgerUnderreplicationManager> queues =
            new ConcurrentHashMap<>();

    void run(BookKeeper client, JsonNode request, ObjectNode result) throws Exception {
        LedgerUnderreplicationManager queue = queue(client);
        long ledger = request.path("ledger").asLong();
        String what = request.get("what").asText();
        switch (what) {
            case "mark": mark(queue, ledger, request); break;
            case "list": list(queue, result); break;
            case "take": result.put("ledger", queue.pollLedgerToRereplicate()); break;
            case "done": queue.markLedgerReplicated(ledger); break;
            case "release": queue.releaseUnderreplicatedLedger(ledger); break;
            case "worker":
                result.put("worker", queue.getReplicationWorkerIdRereplicatingLedger(ledger));
                break;
            case "delay": result.put("seconds", queue.getLostBookieRecoveryDelay()); break;
            default: throw new IllegalArgumentException("unknown operation " + what);
        }
    }

    private synchronized LedgerUnderreplicationManager queue(BookKeeper client) throws Exception {
        LedgerUnderreplicationManager queue = queues.get(client);
        if (queue == null) {
            queue = client.getMetadataClientDriver().getLedgerManagerFactory()
                    .newLedgerUnderreplicationManager();
            queues.put(client, queue);
        }
        return queue;
    }

    private static void mark(LedgerUnderreplicationManager queue, long ledger, JsonNode request)
            throws Exception {
        List<String> missing = new ArrayList<>();
        request.get("missing").forEach(one -> missing.add(one.asText()));
        queue.markLedgerUnderreplicatedAsync(ledger, missing).get(PATIENCE_S, TimeUnit.SECONDS);
    }

    private static void list(LedgerUnderreplicationManager queue, ObjectNode result)
            throws Exception {
        ObjectNode marks = result.putObject("marks");
        Iterator<UnderreplicatedLedger> each = queue.listLedgersToRereplicate(null);
        while (each.hasNext()) {
            UnderreplicatedLedger mark = each.next();
            ArrayNode missing = marks.putArray(Long.toString(mark.getLedgerId()));
            mark.getReplicaList().forEach(missing::add);
        }
    }
}
